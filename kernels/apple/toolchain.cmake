# 64-bit ARM macOS with Zig's C++. Used by `python -m streamfuse.native.apple`.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_CXX_COMPILER ${CMAKE_CURRENT_LIST_DIR}/c++)
set(CMAKE_CXX_ARCHIVE_CREATE "$ENV{STREAMFUSE_ZIG} ar qcs <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "")
# Zig includes the system's headers and libraries and does not scan modules.
set(CMAKE_OSX_SYSROOT "")
set(CMAKE_OSX_DEPLOYMENT_TARGET "")
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
# Zig would build a whole C++ library for each set of options for which CMake tries to link a program.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
