//! Binary interfaces of MPI libraries: the handles and constants that programs are compiled with.
//!
//! One table has what a name means ([`TYPES`], [`OPERATIONS`]); a file for each interface has the handle of a name. A handle
//! is an integer of 32 bits or a pointer. Here it is a `usize`; of an integer, the upper half is cleared ([`Abi::handle`]).

mod mpich;
mod open_mpi;
mod standard;

use std::ffi::c_int;
use weir_engine::short_integers::ShortInteger;
use weir_proto::offload::{WordOperation, WordType};

/// What the bytes of a predefined datatype are. All of them are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeFacts {
    /// Length. Unit: bytes.
    pub bytes: u32,
    /// What reductions combine. `None`: no reduction of ours has this type.
    pub reduced: Option<Reduced>,
}

/// What reductions combine of a datatype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduced {
    /// The words that groups combine.
    pub word: WordType,
    /// The elements, if they are shorter than a word.
    pub short: Option<ShortInteger>,
    /// The operations that the type has.
    operations: Operations,
}

impl Reduced {
    /// Whether the type has an operation.
    pub fn has(self, operation: WordOperation) -> bool {
        use WordOperation::{And, LogicalAnd, LogicalOr, LogicalXor, Or, Xor};
        let is_logical = matches!(operation, LogicalAnd | LogicalOr | LogicalXor);
        let is_bitwise = matches!(operation, And | Or | Xor);
        match self.operations {
            Operations::OfIntegers => operation.combines(),
            Operations::OfFloats => operation.combines() && !is_logical && !is_bitwise,
            Operations::Logical => is_logical,
            Operations::Bitwise => is_bitwise,
        }
    }
}

/// Operations that MPI has for a kind of datatypes. Source: MPI 4.1, section 6.9.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operations {
    OfIntegers,
    OfFloats,
    Logical,
    Bitwise,
}

const fn word(word: WordType) -> TypeFacts {
    let bytes = match word {
        WordType::U32 | WordType::I32 | WordType::F32 => 4,
        WordType::U64 | WordType::I64 | WordType::F64 => 8,
    };
    let operations = match word {
        WordType::F32 | WordType::F64 => Operations::OfFloats,
        _ => Operations::OfIntegers,
    };
    TypeFacts { bytes, reduced: Some(Reduced { word, short: None, operations }) }
}

const fn short(short: ShortInteger, operations: Operations) -> TypeFacts {
    let reduced = Reduced { word: short.word_type(), short: Some(short), operations };
    TypeFacts { bytes: short.bytes() as u32, reduced: Some(reduced) }
}

const fn integer(integer: ShortInteger) -> TypeFacts {
    short(integer, Operations::OfIntegers)
}

/// The datatypes that broadcasts and reductions find without asking the MPI. Letters (`MPI_CHAR`) have no reductions in MPI.
const TYPES: &[(&str, TypeFacts)] = &[
    ("MPI_BYTE", short(ShortInteger::U8, Operations::Bitwise)),
    ("MPI_CHAR", TypeFacts { bytes: 1, reduced: None }),
    ("MPI_SIGNED_CHAR", integer(ShortInteger::I8)),
    ("MPI_UNSIGNED_CHAR", integer(ShortInteger::U8)),
    ("MPI_INT8_T", integer(ShortInteger::I8)),
    ("MPI_UINT8_T", integer(ShortInteger::U8)),
    ("MPI_C_BOOL", short(ShortInteger::U8, Operations::Logical)),
    ("MPI_CXX_BOOL", short(ShortInteger::U8, Operations::Logical)),
    ("MPI_SHORT", integer(ShortInteger::I16)),
    ("MPI_UNSIGNED_SHORT", integer(ShortInteger::U16)),
    ("MPI_INT16_T", integer(ShortInteger::I16)),
    ("MPI_UINT16_T", integer(ShortInteger::U16)),
    ("MPI_INT", word(WordType::I32)),
    ("MPI_UNSIGNED", word(WordType::U32)),
    ("MPI_LONG", word(WordType::I64)),
    ("MPI_UNSIGNED_LONG", word(WordType::U64)),
    ("MPI_LONG_LONG", word(WordType::I64)),
    ("MPI_UNSIGNED_LONG_LONG", word(WordType::U64)),
    ("MPI_INT32_T", word(WordType::I32)),
    ("MPI_UINT32_T", word(WordType::U32)),
    ("MPI_INT64_T", word(WordType::I64)),
    ("MPI_UINT64_T", word(WordType::U64)),
    ("MPI_FLOAT", word(WordType::F32)),
    ("MPI_DOUBLE", word(WordType::F64)),
    ("MPI_AINT", word(WordType::I64)),
    ("MPI_OFFSET", word(WordType::I64)),
    ("MPI_COUNT", word(WordType::I64)),
    ("MPI_INTEGER1", integer(ShortInteger::I8)),
    ("MPI_INTEGER2", integer(ShortInteger::I16)),
    ("MPI_INTEGER4", word(WordType::I32)),
    ("MPI_INTEGER8", word(WordType::I64)),
    ("MPI_REAL4", word(WordType::F32)),
    ("MPI_REAL8", word(WordType::F64)),
];

/// The operations that groups combine. Others stay with the MPI.
const OPERATIONS: &[(&str, WordOperation)] = &[
    ("MPI_SUM", WordOperation::Sum),
    ("MPI_PROD", WordOperation::Product),
    ("MPI_MIN", WordOperation::Min),
    ("MPI_MAX", WordOperation::Max),
    ("MPI_BAND", WordOperation::And),
    ("MPI_BOR", WordOperation::Or),
    ("MPI_BXOR", WordOperation::Xor),
    ("MPI_LAND", WordOperation::LogicalAnd),
    ("MPI_LOR", WordOperation::LogicalOr),
    ("MPI_LXOR", WordOperation::LogicalXor),
];

/// What a binary interface has that is no handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values {
    /// Handles are pointers, not integers of 32 bits.
    has_pointers: bool,
    /// `MPI_IN_PLACE`.
    pub in_place: usize,
    /// `MPI_ANY_TAG`.
    pub any_tag: c_int,
    /// `MPI_STATUS_IGNORE`.
    pub status_ignore: usize,
    /// `MPI_ERR_TRUNCATE`.
    pub truncated: c_int,
    /// The error class of an operation whose member has failed.
    pub member_failed: c_int,
    /// `MPI_THREAD_MULTIPLE`.
    pub thread_multiple: c_int,
}

/// The constants of one binary interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constants {
    /// `MPI_COMM_WORLD`.
    pub world: usize,
    /// `MPI_COMM_NULL`.
    pub null_communicator: usize,
    /// `MPI_DATATYPE_NULL`.
    pub null_datatype: usize,
    /// `MPI_BYTE`, `MPI_INT`, `MPI_MIN`: for the agreement.
    pub byte: usize,
    /// See `byte`.
    pub int: usize,
    /// See `byte`.
    pub min: usize,
    /// All others.
    pub values: Values,
}

/// The entry of a name in a table.
fn entry<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|&&(known, _)| known == name).map(|&(_, entry)| entry)
}

/// A binary interface, with the handles of the names that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abi {
    /// Its kind.
    pub kind: Kind,
    /// Its constants.
    pub constants: Constants,
    /// Sorted by handle.
    types: Vec<(usize, TypeFacts)>,
    operations: Vec<(usize, WordOperation)>,
}

/// The kinds of binary interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of MPICH, which Intel MPI has too.
    Mpich,
    /// Of Open MPI.
    OpenMpi,
    /// Of the standard, from MPI 5 on.
    Standard,
}

impl Kind {
    /// Recognises the MPI.
    ///
    /// - `library_version`: what `MPI_Get_library_version` says.
    /// - `abi_version`: the major version that `MPI_Abi_get_version` says. `None`: the MPI has no such function.
    /// - `has_open_mpi_symbols`: whether it has the symbol of Open MPI's `MPI_COMM_WORLD`.
    pub fn recognise(
        library_version: &str,
        abi_version: Option<c_int>,
        has_open_mpi_symbols: bool,
    ) -> Option<Kind> {
        const OF_MPICH: [&str; 2] = ["MPICH Version", "Intel(R) MPI Library"];
        if abi_version.is_some_and(|version| version >= 1) {
            return Some(Kind::Standard);
        }
        if has_open_mpi_symbols {
            return library_version.starts_with("Open MPI").then_some(Kind::OpenMpi);
        }
        OF_MPICH.iter().any(|begin| library_version.starts_with(begin)).then_some(Kind::Mpich)
    }
}

impl Abi {
    /// The tables of a kind. `symbol`: the address of a symbol of the MPI, for interfaces whose handles are addresses.
    /// `None`: a constant has no value.
    pub fn new(kind: Kind, symbol: impl Fn(&str) -> Option<usize>) -> Option<Abi> {
        let value = |name: &str| match kind {
            Kind::Mpich => entry(mpich::HANDLES, name),
            Kind::OpenMpi => symbol(entry(open_mpi::SYMBOLS, name)?),
            Kind::Standard => entry(standard::HANDLES, name),
        };
        let values = match kind {
            Kind::Mpich => mpich::VALUES,
            Kind::OpenMpi => open_mpi::VALUES,
            Kind::Standard => standard::VALUES,
        };
        let constants = Constants {
            world: value("MPI_COMM_WORLD")?,
            null_communicator: value("MPI_COMM_NULL")?,
            null_datatype: value("MPI_DATATYPE_NULL")?,
            byte: value("MPI_BYTE")?,
            int: value("MPI_INT")?,
            min: value("MPI_MIN")?,
            values,
        };
        let mut types: Vec<_> =
            TYPES.iter().filter_map(|&(name, facts)| Some((value(name)?, facts))).collect();
        types.sort_unstable_by_key(|&(handle, _)| handle);
        let operations =
            OPERATIONS.iter().filter_map(|&(name, operation)| Some((value(name)?, operation))).collect();
        Some(Abi { kind, constants, types, operations })
    }

    /// A handle as it came in a register. C gives no value to the upper half of an integer.
    pub fn handle(&self, raw: usize) -> usize {
        if self.constants.values.has_pointers { raw } else { raw as u32 as usize }
    }

    /// What a datatype is. `None`: it is not in the table, and may have gaps.
    pub fn datatype(&self, handle: usize) -> Option<TypeFacts> {
        let place = self.types.binary_search_by_key(&handle, |&(known, _)| known).ok()?;
        Some(self.types[place].1)
    }

    /// What an operation does. `None`: it is not in the table.
    pub fn operation(&self, handle: usize) -> Option<WordOperation> {
        self.operations.iter().find(|&&(known, _)| known == handle).map(|&(_, operation)| operation)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::path::Path;

    /// The tables of MPICH.
    pub fn mpich() -> Abi {
        Abi::new(Kind::Mpich, |_| None).expect("constants")
    }

    /// The value of `NAME` in a header of the MPIs in `out/env`. `None`: no such file, or the header does not have it.
    fn defined(header: &str, name: &str) -> Option<usize> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../out/env");
        let text = std::fs::read_to_string(directory.join(header)).ok()?;
        let line =
            text.lines().find(|line| line.split_whitespace().take(2).eq(["#define", name]))?.to_owned();
        let word = line.split_whitespace().nth(2)?;
        if word.starts_with("MPI_") {
            return defined(header, word); // another name of the same value
        }
        let digits = word.rsplit(')').find(|part| !part.is_empty())?;
        let digits = digits.trim_start_matches('(');
        match digits.strip_prefix("0x") {
            Some(hex) => usize::from_str_radix(hex, 16).ok(),
            None => digits.parse::<isize>().ok().map(|value| value as usize),
        }
    }

    #[test]
    fn handles_and_constants_are_those_of_the_headers() {
        for (kind, header) in
            [(Kind::Mpich, "mpich/include/mpi.h"), (Kind::Standard, "mpich/include/mpi_abi.h")]
        {
            if defined(header, "MPI_COMM_WORLD").is_none() {
                eprintln!("skipped: no out/env/{header} here, which make env makes");
                continue;
            }
            let abi = Abi::new(kind, |_| None).expect("constants");
            assert_eq!(abi.types.len(), TYPES.len(), "{kind:?}");
            assert_eq!(abi.operations.len(), OPERATIONS.len(), "{kind:?}");
            for &(name, facts) in TYPES {
                let handle = defined(header, name).unwrap_or_else(|| panic!("{name} in {header}"));
                assert_eq!(abi.datatype(handle), Some(facts), "{name} in {header}");
            }
            for &(name, operation) in OPERATIONS {
                let handle = defined(header, name).unwrap_or_else(|| panic!("{name} in {header}"));
                assert_eq!(abi.operation(handle), Some(operation), "{name} in {header}");
            }
            let constants = abi.constants;
            for (name, value) in [
                ("MPI_COMM_WORLD", constants.world),
                ("MPI_COMM_NULL", constants.null_communicator),
                ("MPI_DATATYPE_NULL", constants.null_datatype),
                ("MPI_BYTE", constants.byte),
                ("MPI_INT", constants.int),
                ("MPI_MIN", constants.min),
            ] {
                assert_eq!(defined(header, name), Some(value), "{name} in {header}");
            }
        }
    }

    #[test]
    fn types_of_mpich_say_their_length_in_the_handle() {
        for &(handle, facts) in &mpich().types {
            assert_eq!((handle >> 8) as u32 & 0xff, facts.bytes, "{handle:#x}");
        }
    }

    #[test]
    fn different_names_of_one_type_are_one_type() {
        let abi = mpich();
        let facts = |name| abi.datatype(entry(mpich::HANDLES, name).expect("a name")).expect("a type");
        assert_eq!(facts("MPI_LONG"), facts("MPI_INT64_T"));
        assert_eq!(facts("MPI_LONG_LONG"), facts("MPI_INT64_T"));
        assert_eq!(facts("MPI_UNSIGNED_LONG"), facts("MPI_UINT64_T"));
    }

    #[test]
    fn the_upper_half_of_a_register_is_no_part_of_an_integer() {
        let abi = mpich();
        let handle = entry(mpich::HANDLES, "MPI_COMM_WORLD").expect("a name");
        assert_eq!(abi.handle(handle | 0xdead_beef << 32), handle);
        let pointers =
            Abi::new(Kind::OpenMpi, |name| Some(0x7f00_0000_0000 + name.len())).expect("constants");
        assert_eq!(pointers.handle(0x7f12_3456_789a), 0x7f12_3456_789a);
    }

    #[test]
    fn libraries_are_recognised_and_unknown_ones_are_not() {
        let recognise = Kind::recognise;
        assert_eq!(recognise("MPICH Version:      5.0.2\n", Some(-1), false), Some(Kind::Mpich));
        assert_eq!(recognise("MPICH Version:      5.0.2\n", Some(1), false), Some(Kind::Standard));
        assert_eq!(recognise("Intel(R) MPI Library 2021.18 for Linux* OS\n", None, false), Some(Kind::Mpich));
        assert_eq!(recognise("Open MPI v5.0.11, package", None, true), Some(Kind::OpenMpi));
        assert_eq!(recognise("Open MPI v6.1.0, package", Some(1), true), Some(Kind::Standard));
        assert_eq!(recognise("MVAPICH2 Version      :", None, false), None);
        assert_eq!(recognise("Spectrum MPI v10", None, true), None);
    }

    #[test]
    fn open_mpi_has_a_symbol_for_each_name() {
        for (name, _) in TYPES {
            assert!(
                entry(open_mpi::SYMBOLS, name).is_some_and(|symbol| symbol.starts_with("ompi_mpi_")),
                "{name}"
            );
        }
        for (name, _) in OPERATIONS {
            assert!(
                entry(open_mpi::SYMBOLS, name).is_some_and(|symbol| symbol.starts_with("ompi_mpi_op_")),
                "{name}"
            );
        }
    }
}
