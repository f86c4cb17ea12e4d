# 64-bit ARM macOS with Zig's C++. Used by `python -m streamfuse.native.apple`.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_CXX_COMPILER ${CMAKE_CURRENT_LIST_DIR}/c++)
set(CMAKE_CXX_ARCHIVE_CREATE "$ENV{STREAMFUSE_ZIG} ar qcs <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "")
# Zig brings the system's headers and libraries itself, and scans no modules.
set(CMAKE_OSX_SYSROOT "")
set(CMAKE_OSX_DEPLOYMENT_TARGET "")
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
# A linked program would cost Zig a whole C++ library for each set of options that CMake tries.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
