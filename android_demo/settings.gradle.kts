// The app, for Android Studio. The Maven build beside it (pom.xml) tests the same sources on a desktop.
pluginManagement {
    repositories {
        google()
        mavenCentral()
        gradlePluginPortal()
    }
}

// The library, as any app has it: from a repository that tools/aar fills.
val library = file("../build/maven/dev/streamfuse/streamfuse-android")
check(library.isDirectory) { "$library is missing: run android_demo/tools/aar first (docs/android.md says what it needs)" }

dependencyResolutionManagement {
    repositoriesMode = RepositoriesMode.FAIL_ON_PROJECT_REPOS
    repositories {
        maven {
            url = uri("../build/maven")
            content { includeGroup("dev.streamfuse") }
        }
        google()
        mavenCentral()
    }
}

rootProject.name = "android_demo"
include(":app")
