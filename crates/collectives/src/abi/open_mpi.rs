//! The binary interface of Open MPI: handles are addresses of structures of the library.
//!
//! Source: `mpi.h` of Open MPI 5.0.

use super::Values;

/// The symbol whose address is the handle of each name.
pub const SYMBOLS: &[(&str, &str)] = &[
    ("MPI_COMM_NULL", "ompi_mpi_comm_null"),
    ("MPI_COMM_WORLD", "ompi_mpi_comm_world"),
    ("MPI_DATATYPE_NULL", "ompi_mpi_datatype_null"),
    ("MPI_CHAR", "ompi_mpi_char"),
    ("MPI_UNSIGNED_CHAR", "ompi_mpi_unsigned_char"),
    ("MPI_SHORT", "ompi_mpi_short"),
    ("MPI_UNSIGNED_SHORT", "ompi_mpi_unsigned_short"),
    ("MPI_INT", "ompi_mpi_int"),
    ("MPI_UNSIGNED", "ompi_mpi_unsigned"),
    ("MPI_LONG", "ompi_mpi_long"),
    ("MPI_UNSIGNED_LONG", "ompi_mpi_unsigned_long"),
    ("MPI_LONG_LONG", "ompi_mpi_long_long_int"),
    ("MPI_FLOAT", "ompi_mpi_float"),
    ("MPI_DOUBLE", "ompi_mpi_double"),
    ("MPI_BYTE", "ompi_mpi_byte"),
    ("MPI_SIGNED_CHAR", "ompi_mpi_signed_char"),
    ("MPI_UNSIGNED_LONG_LONG", "ompi_mpi_unsigned_long_long"),
    ("MPI_REAL4", "ompi_mpi_real4"),
    ("MPI_REAL8", "ompi_mpi_real8"),
    ("MPI_INTEGER1", "ompi_mpi_integer1"),
    ("MPI_INTEGER2", "ompi_mpi_integer2"),
    ("MPI_INTEGER4", "ompi_mpi_integer4"),
    ("MPI_INTEGER8", "ompi_mpi_integer8"),
    ("MPI_INT8_T", "ompi_mpi_int8_t"),
    ("MPI_INT16_T", "ompi_mpi_int16_t"),
    ("MPI_INT32_T", "ompi_mpi_int32_t"),
    ("MPI_INT64_T", "ompi_mpi_int64_t"),
    ("MPI_UINT8_T", "ompi_mpi_uint8_t"),
    ("MPI_UINT16_T", "ompi_mpi_uint16_t"),
    ("MPI_UINT32_T", "ompi_mpi_uint32_t"),
    ("MPI_UINT64_T", "ompi_mpi_uint64_t"),
    ("MPI_C_BOOL", "ompi_mpi_c_bool"),
    ("MPI_CXX_BOOL", "ompi_mpi_cxx_bool"),
    ("MPI_AINT", "ompi_mpi_aint"),
    ("MPI_OFFSET", "ompi_mpi_offset"),
    ("MPI_COUNT", "ompi_mpi_count"),
    ("MPI_MAX", "ompi_mpi_op_max"),
    ("MPI_MIN", "ompi_mpi_op_min"),
    ("MPI_SUM", "ompi_mpi_op_sum"),
    ("MPI_PROD", "ompi_mpi_op_prod"),
    ("MPI_BAND", "ompi_mpi_op_band"),
    ("MPI_BOR", "ompi_mpi_op_bor"),
    ("MPI_BXOR", "ompi_mpi_op_bxor"),
    ("MPI_LAND", "ompi_mpi_op_land"),
    ("MPI_LOR", "ompi_mpi_op_lor"),
    ("MPI_LXOR", "ompi_mpi_op_lxor"),
];

/// The other values.
pub const VALUES: Values = Values {
    has_pointers: true,
    in_place: 1,
    any_tag: -1,
    status_ignore: 0,
    truncated: 15,
    member_failed: 75, // MPI_ERR_PROC_FAILED
    thread_multiple: 3,
};
