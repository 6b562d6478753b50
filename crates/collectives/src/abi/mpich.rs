//! The binary interface of MPICH, since version 3.1, and of Intel MPI: handles are integers.
//!
//! Source: `mpi.h` of MPICH 5.0.

use super::Values;

/// The handle of each name.
pub const HANDLES: &[(&str, usize)] = &[
    ("MPI_COMM_NULL", 0x0400_0000),
    ("MPI_COMM_WORLD", 0x4400_0000),
    ("MPI_DATATYPE_NULL", 0x0c00_0000),
    ("MPI_CHAR", 0x4c00_0101),
    ("MPI_UNSIGNED_CHAR", 0x4c00_0102),
    ("MPI_SHORT", 0x4c00_0203),
    ("MPI_UNSIGNED_SHORT", 0x4c00_0204),
    ("MPI_INT", 0x4c00_0405),
    ("MPI_UNSIGNED", 0x4c00_0406),
    ("MPI_LONG", 0x4c00_0807),
    ("MPI_UNSIGNED_LONG", 0x4c00_0808),
    ("MPI_LONG_LONG", 0x4c00_0809),
    ("MPI_FLOAT", 0x4c00_040a),
    ("MPI_DOUBLE", 0x4c00_080b),
    ("MPI_BYTE", 0x4c00_010d),
    ("MPI_SIGNED_CHAR", 0x4c00_0118),
    ("MPI_UNSIGNED_LONG_LONG", 0x4c00_0819),
    ("MPI_INTEGER1", 0x4c00_012d),
    ("MPI_INTEGER2", 0x4c00_022f),
    ("MPI_REAL4", 0x4c00_0427),
    ("MPI_REAL8", 0x4c00_0829),
    ("MPI_INTEGER4", 0x4c00_0430),
    ("MPI_INTEGER8", 0x4c00_0831),
    ("MPI_INT8_T", 0x4c00_0137),
    ("MPI_INT16_T", 0x4c00_0238),
    ("MPI_INT32_T", 0x4c00_0439),
    ("MPI_INT64_T", 0x4c00_083a),
    ("MPI_UINT8_T", 0x4c00_013b),
    ("MPI_UINT16_T", 0x4c00_023c),
    ("MPI_UINT32_T", 0x4c00_043d),
    ("MPI_UINT64_T", 0x4c00_083e),
    ("MPI_C_BOOL", 0x4c00_013f),
    ("MPI_CXX_BOOL", 0x4c00_0133),
    ("MPI_AINT", 0x4c00_0843),
    ("MPI_OFFSET", 0x4c00_0844),
    ("MPI_COUNT", 0x4c00_0845),
    ("MPI_MAX", 0x5800_0001),
    ("MPI_MIN", 0x5800_0002),
    ("MPI_SUM", 0x5800_0003),
    ("MPI_PROD", 0x5800_0004),
    ("MPI_BAND", 0x5800_0006),
    ("MPI_BOR", 0x5800_0008),
    ("MPI_BXOR", 0x5800_000a),
    ("MPI_LAND", 0x5800_0005),
    ("MPI_LOR", 0x5800_0007),
    ("MPI_LXOR", 0x5800_0009),
];

/// The other values.
pub const VALUES: Values = Values {
    has_pointers: false,
    in_place: usize::MAX,
    any_tag: -1,
    status_ignore: 1,
    truncated: 14,
    member_failed: 101, // MPIX_ERR_PROC_FAILED
    thread_multiple: 3,
};
