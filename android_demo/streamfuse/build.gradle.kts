// The library as an Android archive: src/main/kotlin, and src/main/cpp by CMake with the NDK. docs/android.md says what
// must lie ready (ExecuTorch for Android, libstreamfuse_bundle.a).
import org.jetbrains.kotlin.gradle.dsl.JvmTarget

plugins {
    id("com.android.library")
    kotlin("android")
    kotlin("plugin.serialization")
}

android {
    namespace = "dev.streamfuse"
    compileSdk = 36
    ndkVersion = "28.2.13676358" // its libraries fit pages of 16 KiB

    defaultConfig {
        minSdk = 26
        consumerProguardFiles("consumer-rules.pro")
        ndk {
            abiFilters += listOf("arm64-v8a", "x86_64")
        }
        externalNativeBuild {
            cmake {
                arguments += listOf("-DANDROID_STL=c++_static", "-DCMAKE_BUILD_TYPE=Release")
                targets += listOf("streamfuse", "streamfuse_jni")
            }
        }
    }
    externalNativeBuild {
        cmake {
            path = file("src/main/cpp/CMakeLists.txt")
            version = "3.31.6"
        }
    }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_11
        targetCompatibility = JavaVersion.VERSION_11
    }
}

kotlin {
    explicitApi()
    compilerOptions {
        jvmTarget = JvmTarget.JVM_11
        allWarningsAsErrors = true
    }
}

dependencies {
    api("org.jetbrains.kotlinx:kotlinx-coroutines-core:1.10.2")
    api("org.jetbrains:annotations:23.0.0") // @Blocking, for the inspections of an app's editor; coroutines bring it too
    api("org.jetbrains.kotlinx:kotlinx-serialization-json:1.9.0") // JsonObject; serializers of schemaOf
}
