# ExecuTorch as its own CMake installs it from source, under the names that its wheel has and ../CMakeLists.txt uses.
#
# The wheel ships shared libraries (executorch::runtime and so on); a build from source installs archives with names of
# their own, in the folder EXECUTORCH_INSTALL. Archives that register something must go into a library whole, and once.
# `python -m streamfuse.native.android` makes such an install.
if(NOT EXISTS "${EXECUTORCH_INSTALL}/lib/cmake/ExecuTorch/ExecuTorchTargets.cmake")
  message(FATAL_ERROR "EXECUTORCH_INSTALL=${EXECUTORCH_INSTALL} is not the install folder of an ExecuTorch built from source")
endif()
# Not its executorch-config.cmake, which asks for the portable operators too.
include(${EXECUTORCH_INSTALL}/lib/cmake/ExecuTorch/ExecuTorchTargets.cmake)
set(EXECUTORCH_RUNTIME_LIBRARY_DIR "")  # nothing is shared

# executorch::<name> for these archives; what follows WHOLE registers operators or a backend.
function(executorch_component name)
  cmake_parse_arguments(archives "" "" "WHOLE;PLAIN" ${ARGN})
  foreach(archive ${archives_WHOLE} ${archives_PLAIN})
    if(NOT TARGET ${archive})
      message(FATAL_ERROR "executorch::${name} needs ${archive}, which ${EXECUTORCH_INSTALL} does not have")
    endif()
  endforeach()
  add_library(executorch::${name} INTERFACE IMPORTED GLOBAL)
  foreach(archive ${archives_WHOLE})
    set_target_properties(${archive} PROPERTIES INTERFACE_LINK_OPTIONS "")  # it may ask for itself as a whole, too
    target_link_options(executorch::${name} INTERFACE
      "LINKER:--push-state,--whole-archive,$<TARGET_FILE:${archive}>,--pop-state")
  endforeach()
  target_link_libraries(executorch::${name} INTERFACE ${archives_WHOLE} ${archives_PLAIN})
  target_include_directories(executorch::${name} SYSTEM INTERFACE
    ${EXECUTORCH_INSTALL}/include ${EXECUTORCH_INSTALL}/include/executorch/runtime/core/portable_type/c10)
endfunction()

# The quantized embeddings of bundles of --backend xnnpack and vulkan, which the wheel's library is opened for. Both components
# share one target, so that its archive is linked once.
function(executorch_quantized name)
  if(NOT TARGET executorch::kernels_quantized)
    executorch_component(kernels_quantized WHOLE quantized_ops_lib PLAIN quantized_kernels)
  endif()
  target_link_libraries(executorch::${name} INTERFACE executorch::kernels_quantized)
endfunction()

foreach(component IN LISTS executorch_FIND_COMPONENTS)
  if(component STREQUAL "runtime")
    executorch_component(runtime WHOLE executorch PLAIN executorch_core extension_data_loader)
    target_compile_definitions(executorch::runtime INTERFACE C10_USING_CUSTOM_GENERATED_MACROS)
  elseif(component STREQUAL "threadpool")
    executorch_component(threadpool PLAIN extension_threadpool)
  elseif(component STREQUAL "kernels_portable")
    executorch_component(kernels_portable WHOLE portable_ops_lib PLAIN portable_kernels)
  elseif(component STREQUAL "kernels_optimized")
    executorch_component(kernels_optimized WHOLE optimized_native_cpu_ops_lib)
    executorch_quantized(kernels_optimized)
  elseif(component STREQUAL "backend_xnnpack")
    executorch_component(backend_xnnpack WHOLE xnnpack_backend)
  elseif(component STREQUAL "etdump")
    executorch_component(etdump PLAIN etdump flatccrt)
  elseif(component STREQUAL "backend_qnn")
    executorch_component(backend_qnn PLAIN qnn_executorch_backend)
  elseif(component STREQUAL "backend_vulkan")
    executorch_component(backend_vulkan WHOLE vulkan_backend)
    executorch_quantized(backend_vulkan)
  elseif(component STREQUAL "backend_coreml")
    executorch_component(backend_coreml WHOLE coremldelegate PLAIN coreml_inmemoryfs coreml_util)
  else()
    message(FATAL_ERROR "there is no executorch::${component} in a build from source")
  endif()
endforeach()
set(executorch_FOUND TRUE)
