//! Header and library agree: functions, constants, layouts. Wrong pointers and numbers of C programs are errors.
#![allow(missing_docs, reason = "test code")]

mod common;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use common::{compile, library};
use weir_native::c::{self, CChange, COptions, CPlace, CReduction};
use weir_native::{Error, Fault, MAX_ATOMICS, MAX_JOINED_GROUPS, MAX_RANKS, WordOperation, WordType};

fn header() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/weir.h");
    std::fs::read_to_string(path).expect("the header")
}

/// Names before a parenthesis in declarations at the beginning of a line, which are no definitions.
fn declared() -> BTreeSet<String> {
    let text = header();
    let declarations = text.lines().filter(|line| {
        ["int weir_", "uint32_t weir_", "const char *weir_"].iter().any(|begin| line.starts_with(begin))
    });
    let name = |line: &str| {
        let at = line.find("weir_").expect("just looked for");
        line[at..].chars().take_while(|it| it.is_ascii_alphanumeric() || *it == '_').collect::<String>()
    };
    declarations.map(name).collect()
}

#[test]
fn the_library_has_the_functions_of_the_header_and_no_others() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().expect("binutils");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let exported: BTreeSet<String> =
        text.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect();
    assert_eq!(exported, declared());
}

/// The name of a constant in C: `CompareSwap` as `WEIR_COMPARE_SWAP`.
fn constant(name: &str) -> String {
    let mut constant = "WEIR".to_owned();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            constant.push('_');
        }
        constant.push(letter.to_ascii_uppercase());
    }
    constant
}

#[test]
fn constants_and_layouts_are_those_of_the_library() {
    let mut facts: Vec<(String, u64)> = vec![
        ("WEIR_INTERFACE".into(), c::INTERFACE.into()),
        ("WEIR_AUTOMATIC_PROGRESS".into(), c::AUTOMATIC_PROGRESS.into()),
        ("WEIR_READABLE".into(), c::READABLE.into()),
        ("WEIR_WRITABLE".into(), c::WRITABLE.into()),
        ("WEIR_WORLD".into(), c::WORLD.into()),
        ("WEIR_ALL".into(), c::ALL.into()),
    ];
    facts.extend(WordOperation::ALL.map(|it| (constant(&format!("{it:?}")), it as u64)));
    facts.extend(WordType::ALL.map(|it| (constant(&format!("{it:?}")), it as u64)));
    let place = || ("weir_place", size_of::<CPlace>());
    for (name, bytes) in [
        ("weir_options", size_of::<COptions>()),
        place(),
        ("weir_reduction", size_of::<CReduction>()),
        ("weir_change", size_of::<CChange>()),
    ] {
        facts.push((format!("sizeof({name})"), bytes as u64));
    }
    macro_rules! fields {
        ($($c_type:literal $rust_type:ty: $($c_field:literal $field:ident),+;)+) => {
            $($(facts.push((
                format!("offsetof({}, {})", $c_type, $c_field),
                offset_of!($rust_type, $field) as u64,
            ));)+)+
        };
    }
    fields! {
        "weir_options" COptions: "interface" interface, "bytes" bytes, "flags" flags, "rank" rank, "size" size,
            "patience_ms" patience_ms, "directory" directory, "all_gather" all_gather, "context" context;
        "weir_place" CPlace: "key" key, "offset" offset, "rank" rank;
        "weir_reduction" CReduction: "group" group, "root" root, "operation" operation, "type" word_type;
        "weir_change" CChange: "operand" operand, "compare" compare, "operation" operation, "type" word_type;
    }
    let lost = Error::Lost { rank: None, fault: Fault::Died };
    let refused = Error::Refused { rank: 0, key: 0, offset: 0, bytes: 0 };
    let argument = Error::Argument { what: "", value: String::new(), allowed: String::new() };
    let thread = Error::Thread(std::io::Error::other(""));
    let exchange = Error::Exchange(weir_native::ExchangeError::Stranger { rank: 0 });
    let errors = [
        ("AGAIN", Error::Again { what: "", limit: 0 }),
        ("INVALID", argument),
        ("LOST", lost),
        ("REFUSED", refused),
        ("EXCHANGE", exchange),
        ("OPEN", thread),
        ("CLOSED", Error::Closed),
    ];
    facts.extend(errors.iter().map(|(name, error)| (format!("WEIR_{name}"), error.code() as u64)));
    let mut source = "#include <stddef.h>\n#include \"weir.h\"\n".to_owned();
    for (expression, value) in &facts {
        writeln!(source, "_Static_assert({expression} == {value}u, \"{expression}\");").expect("a string");
    }
    source += "int main(void) { return weir_interface() == WEIR_INTERFACE ? 0 : 1; }\n";
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("facts.c");
    std::fs::write(&file, source).expect("a file");
    let program = compile(&file, "facts");
    assert!(Command::new(program).status().expect("it runs").success());
    for bound in [
        format!("at most {MAX_RANKS};"),
        format!("At most {} groups", MAX_JOINED_GROUPS),
        format!("At most {MAX_ATOMICS} are"),
    ] {
        assert!(header().replace("\n *", "").contains(&bound), "the header says: {bound}");
    }
}

#[test]
fn wrong_pointers_and_numbers_of_c_programs_are_errors() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong.c");
    let program = compile(&source, "wrong");
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let mut command = Command::new(program);
    command.env("WEIR_RANK", "0").env("WEIR_SIZE", "1").env("FI_WEIR_SHM_DIR", directory.path());
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}
