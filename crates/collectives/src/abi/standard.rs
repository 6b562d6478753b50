//! The binary interface of the standard, from MPI 5 on: handles are pointers with fixed values.
//!
//! Source: `mpi_abi.h` of MPICH 5.0.

use super::Values;

/// The handle of each name.
pub const HANDLES: &[(&str, usize)] = &[
    ("MPI_COMM_NULL", 0x100),
    ("MPI_COMM_WORLD", 0x101),
    ("MPI_DATATYPE_NULL", 0x200),
    ("MPI_AINT", 0x201),
    ("MPI_COUNT", 0x202),
    ("MPI_OFFSET", 0x203),
    ("MPI_SHORT", 0x208),
    ("MPI_INT", 0x209),
    ("MPI_LONG", 0x20a),
    ("MPI_LONG_LONG", 0x20b),
    ("MPI_UNSIGNED_SHORT", 0x20c),
    ("MPI_UNSIGNED", 0x20d),
    ("MPI_UNSIGNED_LONG", 0x20e),
    ("MPI_UNSIGNED_LONG_LONG", 0x20f),
    ("MPI_FLOAT", 0x210),
    ("MPI_DOUBLE", 0x214),
    ("MPI_C_BOOL", 0x238),
    ("MPI_CXX_BOOL", 0x239),
    ("MPI_INT8_T", 0x240),
    ("MPI_UINT8_T", 0x241),
    ("MPI_CHAR", 0x243),
    ("MPI_SIGNED_CHAR", 0x244),
    ("MPI_UNSIGNED_CHAR", 0x245),
    ("MPI_BYTE", 0x247),
    ("MPI_INT16_T", 0x248),
    ("MPI_UINT16_T", 0x249),
    ("MPI_INT32_T", 0x250),
    ("MPI_UINT32_T", 0x251),
    ("MPI_INT64_T", 0x258),
    ("MPI_UINT64_T", 0x259),
    ("MPI_INTEGER1", 0x2c1),
    ("MPI_INTEGER2", 0x2c9),
    ("MPI_INTEGER4", 0x2d1),
    ("MPI_REAL4", 0x2d2),
    ("MPI_INTEGER8", 0x2d9),
    ("MPI_REAL8", 0x2da),
    ("MPI_SUM", 0x21),
    ("MPI_MIN", 0x22),
    ("MPI_MAX", 0x23),
    ("MPI_PROD", 0x24),
    ("MPI_BAND", 0x28),
    ("MPI_BOR", 0x29),
    ("MPI_BXOR", 0x2a),
    ("MPI_LAND", 0x30),
    ("MPI_LOR", 0x31),
    ("MPI_LXOR", 0x32),
];

/// The other values.
pub const VALUES: Values = Values {
    has_pointers: true,
    in_place: 1,
    any_tag: -2,
    status_ignore: 0,
    truncated: 15,
    member_failed: 58, // MPI_ERR_PROC_ABORTED
    thread_multiple: 4096,
};
