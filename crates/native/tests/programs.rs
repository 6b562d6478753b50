//! The two example programs, with several processes: they run to their end, and a rank that is killed is an error at
//! all others.
#![allow(missing_docs, reason = "test code")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{compile, library};

#[expect(dead_code, reason = "nobody calls its `main` here")]
#[path = "../examples/histogram.rs"]
mod histogram;

/// Set in processes of this file that are ranks of the example in Rust.
const IS_RANK: &str = "TEST_NATIVE_RANK";
/// The rank that shall stop, for those processes.
const VICTIM: &str = "TEST_NATIVE_VICTIM";
/// `WEIR_LOST`.
const LOST: i32 = 3;

/// A program of a job.
#[derive(Clone)]
enum Program {
    Rust,
    C(PathBuf),
}

impl Program {
    fn command(&self, victim: Option<u32>) -> Command {
        match self {
            Program::C(file) => {
                let mut command = Command::new(file);
                command.args(victim.map(|rank| rank.to_string()));
                command
            }
            Program::Rust => {
                let mut command = Command::new(std::env::current_exe().expect("a test has a file"));
                command.args(["--exact", "rank_of_the_example_in_rust", "--nocapture"]).env(IS_RANK, "1");
                victim.map(|rank| command.env(VICTIM, rank.to_string()));
                command
            }
        }
    }

    /// Starts the ranks of a job that meet in `directory`, with these settings.
    fn start(
        &self,
        directory: &Path,
        size: u32,
        victim: Option<u32>,
        settings: &[(&str, &str)],
    ) -> Vec<Child> {
        let exchange = directory.join("exchange");
        std::fs::create_dir(&exchange).expect("a directory");
        let start = |rank: u32| {
            let mut command = self.command(victim);
            let numbers = [("WEIR_RANK", rank), ("WEIR_SIZE", size)];
            command.envs(numbers.map(|(name, number)| (name, number.to_string())));
            command.env("WEIR_EXCHANGE_DIR", &exchange).env("FI_WEIR_SHM_DIR", directory);
            command.envs(settings.iter().copied());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("a process")
        };
        (0..size).map(start).collect()
    }
}

/// Runs `main` of the example as one rank, if this process was started for that.
#[test]
fn rank_of_the_example_in_rust() {
    if std::env::var_os(IS_RANK).is_some() {
        let victim = std::env::var(VICTIM).ok().and_then(|rank| rank.parse().ok());
        let code = match histogram::run(victim) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("{error}");
                error.code()
            }
        };
        std::process::exit(code);
    }
}

fn programs() -> Vec<Program> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tasks.c");
    vec![Program::Rust, Program::C(compile(&source, "tasks"))]
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory")
}

/// Runs a job to its end. Each rank says its result, and nothing is left.
fn run(program: &Program, size: u32, settings: &[(&str, &str)]) {
    let directory = directory();
    let ranks = program.start(directory.path(), size, None, settings);
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = child.wait_with_output().expect("it ends");
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "rank {rank} of {size}: {said}{errors}");
        let result = match program {
            Program::Rust => format!("{} numbers", 5000 * size),
            Program::C(_) => "pi is 3.1416".to_owned(),
        };
        assert!(said.contains(&format!("rank {rank} of {size}: {result}")), "{said}{errors}");
    }
    let left = std::fs::read_dir(directory.path().join("exchange")).expect("a directory").count();
    assert_eq!(left, 0, "files of the exchange");
    let left: Vec<_> = std::fs::read_dir(directory.path()).expect("a directory").flatten().collect();
    assert_eq!(left.len(), 1, "mailboxes: {left:?}");
}

#[test]
fn one_two_and_four_ranks_agree_and_leave_nothing_behind() {
    for program in programs() {
        [1, 2, 4].into_iter().for_each(|size| run(&program, size, &[]));
        run(&program, 3, &[("FI_WEIR_COLLECTIVES", "0")]); // by messages
    }
}

#[test]
fn ranks_that_share_no_memory_agree_too() {
    let settings = [("FI_WEIR_LINK", "udp"), ("FI_WEIR_NET", "127.0.0.0/8")];
    programs().iter().for_each(|program| run(program, 3, &settings));
}

#[test]
fn a_rank_that_is_killed_is_an_error_at_all_others() {
    for program in programs() {
        for (size, node_groups) in [(2, "1"), (4, "1"), (4, "0")] {
            let directory = directory();
            let settings = [("FI_WEIR_COLLECTIVES", node_groups)];
            let mut ranks = program.start(directory.path(), size, Some(size - 1), &settings);
            let mut victim = ranks.pop().expect("the last rank");
            let mut lines = BufReader::new(victim.stdout.take().expect("a pipe"));
            let mut line = String::new();
            while !line.contains("waits for its end") {
                line.clear();
                assert!(lines.read_line(&mut line).expect("a pipe") > 0, "it has ended");
            }
            victim.kill().expect("it runs");
            for mut child in ranks {
                let mut errors = String::new();
                child.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("a pipe");
                let status = child.wait().expect("it ends");
                assert_eq!(status.code(), Some(LOST), "{errors}");
                assert!(errors.contains("is lost: it "), "{errors}");
            }
            victim.wait().expect("it is dead");
        }
    }
}

#[test]
fn the_library_has_the_name_that_counts_the_interface() {
    let output =
        Command::new("readelf").arg("-d").arg(library()).output().expect("binutils, as for every build");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("Library soname: [libweir.so.1]"), "{text}");
}
