# The CUDA plug-in, libhaggle_cuda.so beside the program. nvcc is run by hand instead of through CMake's CUDA language: the
# program itself stays pure C, and configuring needs no device and no compiler test of its own.
#
#   HAGGLE_CUDA=AUTO|ON|OFF          HAGGLE_CUDA_ARCHS="80;90"     HAGGLE_CUDA_ROOT=/usr/local/cuda
#
# The CUDA runtime is linked in; cuBLASLt (some 500 MB) is not: libcublasLt.so is found beside the plug-in, in the toolkit it
# was built with, or where the system looks. cuDNN is opened at run time, if its headers were there when this was built.
set(HAGGLE_CUDA_ARCHS "80;90" CACHE STRING "Compute capabilities the plug-in holds machine code for; PTX for the last")
if(HAGGLE_CUDA STREQUAL "OFF" OR (HAGGLE_SANITIZE AND HAGGLE_CUDA STREQUAL "AUTO"))
  return()
endif()
find_program(HAGGLE_NVCC nvcc HINTS ${HAGGLE_CUDA_ROOT}/bin $ENV{CUDA_HOME}/bin PATHS /usr/local/cuda/bin)
if(NOT HAGGLE_NVCC)
  if(HAGGLE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HAGGLE_CUDA=ON, but nvcc is not in PATH, $CUDA_HOME or /usr/local/cuda")
  endif()
  message(STATUS "cuda plug-in: skipped, no nvcc")
  return()
endif()
get_filename_component(cuda_root ${HAGGLE_NVCC} REALPATH)
get_filename_component(cuda_root ${cuda_root}/../.. ABSOLUTE)

set(nvcc_flags -std=c++17 -O3 -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra -I${CMAKE_SOURCE_DIR}/src
  -cudart=static)
if(HAGGLE_WERROR)
  list(APPEND nvcc_flags -Xcompiler=-Werror -Werror=all-warnings)
endif()
foreach(arch IN LISTS HAGGLE_CUDA_ARCHS)
  list(APPEND nvcc_flags -gencode=arch=compute_${arch},code=sm_${arch})
  set(newest ${arch})
endforeach()
list(APPEND nvcc_flags -gencode=arch=compute_${newest},code=compute_${newest})

file(GLOB cuda_sources CONFIGURE_DEPENDS src/backend/cuda/*.cu src/backend/cuda/plain/*.cu src/backend/cuda/fast/*.cu)
set(cuda_objects "")
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
foreach(source IN LISTS cuda_sources)
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR}/src/backend/cuda ${source})
  string(REGEX REPLACE "[/.]" "_" name ${name})
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${HAGGLE_NVCC} ${nvcc_flags} -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d COMMENT "Building CUDA object ${name}.o" VERBATIM)
  list(APPEND cuda_objects ${object})
endforeach()
set(plugin ${CMAKE_BINARY_DIR}/libhaggle_cuda.so)
add_custom_command(OUTPUT ${plugin}
  COMMAND ${HAGGLE_NVCC} ${nvcc_flags} -shared -o ${plugin} ${cuda_objects} -lcublasLt -ldl
    "-Xlinker=-rpath,$ORIGIN:$ORIGIN/../lib:${cuda_root}/lib64:/usr/local/cuda/lib64" -Xlinker=--enable-new-dtags
    -Xlinker=--no-undefined
  DEPENDS ${cuda_objects} COMMENT "Linking libhaggle_cuda.so" VERBATIM)
add_custom_target(cuda ALL DEPENDS ${plugin})
include(GNUInstallDirs)
install(FILES ${plugin} DESTINATION ${CMAKE_INSTALL_LIBDIR}/haggle)
message(STATUS "cuda plug-in: ${HAGGLE_NVCC}, sm_${HAGGLE_CUDA_ARCHS}")
