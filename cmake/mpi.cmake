# The MPI plug-in, libhaggle_mpi.so beside the program: ranks as processes. The program itself links nothing of MPI.
#
#   HAGGLE_MPI=AUTO|ON|OFF        MPI_C_COMPILER=/path/to/mpicc chooses among several
#
# It is plain MPI 3, so Open MPI and MPICH both do; which one it is was decided when it was built.
if(HAGGLE_MPI STREQUAL "OFF" OR (HAGGLE_SANITIZE AND HAGGLE_MPI STREQUAL "AUTO"))
  return()
endif()
set(MPI_SKIP_MPICXX TRUE)
find_package(MPI 3.0 QUIET COMPONENTS C)
if(NOT MPI_C_FOUND)
  if(HAGGLE_MPI STREQUAL "ON")
    message(FATAL_ERROR "HAGGLE_MPI=ON, but no MPI 3 with headers was found (Debian: libopenmpi-dev or libmpich-dev)")
  endif()
  message(STATUS "mpi plug-in: skipped, no MPI headers")
  return()
endif()
file(GLOB mpi_sources CONFIGURE_DEPENDS src/comm/mpi/*.c)
add_library(mpi MODULE ${mpi_sources})
target_include_directories(mpi PRIVATE src)
target_compile_options(mpi PRIVATE -Wno-stringop-overflow) # gcc misreads MPICH's MPI_STATUSES_IGNORE
target_link_libraries(mpi PRIVATE MPI::MPI_C Threads::Threads)
target_link_options(mpi PRIVATE -Wl,--no-undefined)
set_target_properties(mpi PROPERTIES OUTPUT_NAME haggle_mpi LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
include(GNUInstallDirs)
install(TARGETS mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/haggle)
message(STATUS "mpi plug-in: ${MPI_C_COMPILER}, MPI ${MPI_C_VERSION}")
