//! The C programs of the benchmarks, whose sources are inside this command. The `mpicc` of the MPI that runs them
//! compiles them; Intel MPI runs those of MPICH. An installed `weir` therefore needs only an MPI and a C compiler.
//!
//! Each benchmark compiles them into a temporary directory, which takes a few tenths of a second. So they are never
//! stale.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weir_mpi::find::Mpi;
use weir_mpi::job;
use weir_mpi::program::is_executable;

/// The source of a program.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its name.
    pub name: &'static str,
    /// The C source.
    pub text: &'static str,
    /// Name and content of the file that it includes, if it does.
    pub header: Option<(&'static str, &'static str)>,
}

impl Source {
    /// Of one file.
    const fn new(name: &'static str, text: &'static str) -> Source {
        Source { name, text, header: None }
    }
}

/// The program of the flood benchmark.
pub const FLOOD: Source = Source::new("flood", include_str!("../../../tests/mpi/flood.c"));
/// The lower bound of collectives: without MPI and protocol.
pub const FLOOR: Source = Source::new("floor", include_str!("../../../tests/mpi/floor.c"));
/// The program of one-sided operations.
pub const ONE_SIDED: Source = Source::new("one_sided", include_str!("../../../tests/mpi/one_sided.c"));
/// The program of traffic that can congest a network.
pub const CONGESTION: Source = Source::new("congestion", include_str!("../../../tests/mpi/congestion.c"));
/// The program of messages, collectives and memory.
pub const MEASURE: Source = Source {
    name: "measure",
    text: include_str!("../../../tests/mpi/measure.c"),
    header: Some(("measure_operations.h", include_str!("../../../tests/mpi/measure_operations.h"))),
};

/// Time limit of the compiler.
const LIMIT: Duration = Duration::from_secs(60);

/// Compiles a program for `mpi` in `scratch`. A program for MPICH also runs under Intel MPI, which has the same binary
/// interface.
///
/// # Errors
/// One line: what is missing, or the compiler's message.
pub fn compile(program: Source, mpi: &Mpi, scratch: &Path) -> Result<PathBuf, String> {
    let Source { name, text, header } = program;
    let compiler = mpi.bin_dir().join("mpicc");
    if !is_executable(&compiler) {
        return Err(format!(
            "{} is missing: it compiles the {name} program (in Linux distributions it is part of the MPI's development \
             package)",
            compiler.display()
        ));
    }
    let source = scratch.join(format!("{name}.c"));
    let program = scratch.join(format!("{name}-{}", mpi.kind.word()));
    let write = |path: &Path, text| {
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    write(&source, text)?;
    if let Some((file, content)) = header {
        write(&scratch.join(file), content)?;
    }
    let mut command = Command::new(&compiler);
    // LD_LIBRARY_PATH has precedence over the library that the program was linked with.
    command.args(["-O2", "-Wl,--enable-new-dtags", "-o"]).arg(&program).arg(&source).arg("-pthread");
    if let Some(directory) = mpi.library_dir() {
        command.env("LD_LIBRARY_PATH", directory);
    }
    let output = job::capture(command, LIMIT).map_err(|error| format!("{}: {error}", compiler.display()))?;
    if output.success() {
        return Ok(program);
    }
    let said = format!("{}\n{}", output.stderr, output.stdout);
    let telling = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = telling.clone().find(|line| line.contains("not found") || line.contains("error"));
    let line = line.or_else(|| telling.clone().next()).unwrap_or("it printed nothing");
    Err(format!(
        "{} could not compile the {name} program (is there a C compiler, `cc`?): {line}",
        compiler.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use weir_mpi::find::Kind;

    fn mpi_with(compiler: Option<&str>) -> (tempfile::TempDir, Mpi) {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        if let Some(script) = compiler {
            std::fs::write(bin.join("mpicc"), format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(bin.join("mpicc"), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mpiexec = bin.join("mpiexec");
        let mpi =
            Mpi { kind: Kind::Mpich, version: "5.0.2".into(), mpiexec, found: String::new(), unusable: None };
        (root, mpi)
    }

    #[test]
    fn programs_are_compiled_by_the_mpis_mpicc() {
        // This compiler copies the source.
        let (root, mpi) = mpi_with(Some("cp \"$5\" \"$4\""));
        let program = compile(FLOOD, &mpi, root.path()).unwrap();
        assert_eq!(std::fs::read_to_string(program).unwrap(), FLOOD.text);
        assert!(FLOOD.text.contains("MPI_Init") && FLOOD.text.contains("peak_growth_kib"));
        compile(MEASURE, &mpi, root.path()).unwrap();
        let (file, content) = MEASURE.header.unwrap();
        assert!(MEASURE.text.contains(&format!("#include \"{file}\"")));
        assert_eq!(std::fs::read_to_string(root.path().join(file)).unwrap(), content);
    }

    #[test]
    fn what_is_missing_is_named() {
        let (root, mpi) = mpi_with(None);
        let missing = compile(FLOOD, &mpi, root.path()).unwrap_err();
        assert!(missing.contains("bin/mpicc is missing"), "{missing}");
        let (root, mpi) = mpi_with(Some("echo 'line 9: cc: command not found' >&2; exit 127"));
        let failed = compile(FLOOD, &mpi, root.path()).unwrap_err();
        assert!(failed.ends_with("`cc`?): line 9: cc: command not found"), "{failed}");
    }
}
