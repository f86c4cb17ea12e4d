# ExecuTorch as its own CMake installs it for Android, under the names that its wheel has and kernels/CMakeLists.txt uses.
#
# The wheel ships shared libraries (executorch::runtime and so on); a build from source installs archives with names of
# their own. Archives that register something must go into libstreamfuse whole, and once.
if(NOT EXECUTORCH_INSTALL)
  set(EXECUTORCH_INSTALL ${REPOSITORY}/build/ndk/${ANDROID_ABI}/executorch)
endif()
if(NOT STREAMFUSE_BUNDLE_LIBRARY)
  set(STREAMFUSE_BUNDLE_LIBRARY ${REPOSITORY}/build/ndk/${ANDROID_ABI}/libstreamfuse_bundle.a CACHE FILEPATH "")
endif()
foreach(needed ${EXECUTORCH_INSTALL} ${STREAMFUSE_BUNDLE_LIBRARY})
  if(NOT EXISTS ${needed})
    message(FATAL_ERROR "${needed} is missing: docs/android.md says how it is made")
  endif()
endforeach()

set(executorch_DIR ${EXECUTORCH_INSTALL}/lib/cmake/ExecuTorch)
find_package(executorch CONFIG REQUIRED)

# executorch::<name> for these archives; what follows WHOLE registers operators or a backend.
function(executorch_component name)
  cmake_parse_arguments(archives "" "" "WHOLE;PLAIN" ${ARGN})
  add_library(executorch::${name} INTERFACE IMPORTED GLOBAL)
  foreach(archive ${archives_WHOLE})
    set_target_properties(${archive} PROPERTIES INTERFACE_LINK_OPTIONS "")  # it may ask for itself as a whole, too
    target_link_options(executorch::${name} INTERFACE
      "LINKER:--push-state,--whole-archive,$<TARGET_FILE:${archive}>,--pop-state")
  endforeach()
  target_link_libraries(executorch::${name} INTERFACE ${archives_WHOLE} ${archives_PLAIN})
  target_include_directories(executorch::${name} SYSTEM INTERFACE ${EXECUTORCH_INCLUDE_DIRS})
endfunction()

executorch_component(runtime WHOLE executorch PLAIN executorch_core extension_data_loader)
executorch_component(threadpool PLAIN extension_threadpool)
executorch_component(kernels_optimized WHOLE optimized_native_cpu_ops_lib)
executorch_component(backend_xnnpack WHOLE xnnpack_backend)
executorch_component(etdump PLAIN etdump flatccrt)
if(STREAMFUSE_QNN)
  executorch_component(backend_qnn PLAIN qnn_executorch_backend)
endif()
if(STREAMFUSE_VULKAN)
  executorch_component(backend_vulkan WHOLE vulkan_backend)
endif()
