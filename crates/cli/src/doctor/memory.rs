//! Whether one process may copy from another: tried with two processes that are no relatives but siblings, as ranks are.
//!
//! A parent may look into its child also where siblings may not (Yama), so trying that would prove nothing.

use super::Finding;
use clap::{Args, Subcommand};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, IoSliceMut, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use weir_mpi::job;
use weir_output::Failure;

/// What is copied.
const SECRET: [u8; 8] = *b"weirtest";

/// Options of the helper process.
#[derive(Args, Debug)]
pub struct ProbeArguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand, Debug)]
enum Role {
    /// Offer some memory until standard input ends.
    Offer,
    /// Copy from the memory that another process offers.
    Copy {
        /// Its process.
        pid: i32,
        /// Where the memory is there.
        address: usize,
    },
}

/// The helper process: one side of the copy.
///
/// # Errors
/// [`Failure::System`], with the reason that the kernel gives.
pub fn probe(arguments: &ProbeArguments) -> Result<u8, Failure> {
    match arguments.role {
        Role::Offer => {
            let offered = Box::new(SECRET);
            println!("{} {}", std::process::id(), offered.as_ptr() as usize);
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            // Used after the wait, so that it stays where it is till then.
            assert_eq!(*std::hint::black_box(offered), SECRET, "offered memory was changed");
        }
        Role::Copy { pid, address } => {
            let mut copied = [0; SECRET.len()];
            let remote = RemoteIoVec { base: address, len: copied.len() };
            let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(&mut copied)], &[remote]);
            read.map_err(|errno| Failure::System { what: "process_vm_readv".into(), source: errno.into() })?;
            if copied != SECRET {
                return Err(Failure::Usage(String::from("something else was copied than was offered")));
            }
        }
    }
    Ok(0)
}

/// Ends the helper also if the check gives up.
struct Offering(Child);

impl Drop for Offering {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tries a copy between two processes.
pub fn cross_memory_attach() -> Finding {
    const CHECK: &str = "memory copy";
    match attempt() {
        Ok(()) => Finding::ok(
            CHECK,
            "processes may copy from each other (process_vm_readv): large messages are copied once",
        ),
        Err(why) => Finding::warn(
            CHECK,
            format!(
                "processes may not copy from each other ({why}): large messages go through the mailbox, slower"
            ),
            advice(std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok().as_deref()),
        ),
    }
}

fn attempt() -> Result<(), String> {
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    let offering = Command::new(&executable)
        .args(["probe", "offer"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut offering = Offering(offering);
    let mut line = String::new();
    let stdout = offering.0.stdout.take().ok_or("no output of the helper")?;
    BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
    let mut copy = Command::new(&executable);
    copy.args(["probe", "copy"]).args(line.split_whitespace());
    let output = job::capture(copy, Duration::from_secs(10)).map_err(|error| error.to_string())?;
    if output.success() {
        return Ok(());
    }
    Err(output.stderr.trim().trim_start_matches("weir: ").to_owned())
}

/// What to change, by the content of Yama's switch (absent: no Yama).
fn advice(ptrace_scope: Option<&str>) -> String {
    match ptrace_scope.map(str::trim) {
        Some("0") | None => String::from(
            "in a container: allow process_vm_readv (docker run --cap-add SYS_PTRACE, or a seccomp profile that has it)",
        ),
        Some(scope) => format!("sysctl kernel.yama.ptrace_scope=0 (it is {scope})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_depends_on_yama() {
        assert_eq!(advice(Some("1\n")), "sysctl kernel.yama.ptrace_scope=0 (it is 1)");
        assert!(advice(Some("0\n")).starts_with("in a container"));
        assert!(advice(None).contains("SYS_PTRACE"));
    }

    #[test]
    fn reading_own_memory_works_and_unmapped_memory_fails() {
        let offered = Box::new(SECRET);
        let copy =
            |address| probe(&ProbeArguments { role: Role::Copy { pid: std::process::id() as i32, address } });
        assert_eq!(copy(offered.as_ptr() as usize).unwrap(), 0);
        assert!(copy(8).unwrap_err().to_string().starts_with("process_vm_readv: "));
    }
}
