//! Check of `weir doctor` on cross-memory attach: one process copies from the memory of another.
//!
//! The check uses two child processes of this command, because ranks are siblings too. The Linux security module Yama may
//! permit a copy from a child and forbid it between siblings, so a copy from our own child proves nothing.

use super::Finding;
use clap::{Args, Subcommand};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, IoSliceMut, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use weir_mpi::job;
use weir_output::Failure;

/// The content that is copied.
const CONTENT: [u8; 8] = *b"weirtest";

/// Options of the helper process.
#[derive(Args, Debug)]
pub struct ProbeArguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand, Debug)]
enum Role {
    /// Offer a piece of memory until standard input ends.
    Offer,
    /// Copy from the memory that another process offers.
    Copy {
        /// The process that offers memory.
        pid: i32,
        /// Address of the memory in that process.
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
            let offered = Box::new(CONTENT);
            println!("{} {}", std::process::id(), offered.as_ptr() as usize);
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            // This use after the wait keeps the memory allocated until then.
            assert_eq!(*std::hint::black_box(offered), CONTENT, "the offered memory was changed");
        }
        Role::Copy { pid, address } => {
            let mut copied = [0; CONTENT.len()];
            let remote = RemoteIoVec { base: address, len: copied.len() };
            let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(&mut copied)], &[remote]);
            read.map_err(|errno| Failure::System { what: "process_vm_readv".into(), source: errno.into() })?;
            if copied != CONTENT {
                return Err(Failure::Usage(String::from(
                    "the copy differs from the memory that was offered",
                )));
            }
        }
    }
    Ok(0)
}

/// The helper process that offers memory. Dropping it ends the process.
struct Offering(Child);

impl Drop for Offering {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Performs a copy between two processes.
pub fn cross_memory_attach() -> Finding {
    const CHECK: &str = "memory copy";
    match attempt() {
        Ok(()) => Finding::ok(
            CHECK,
            "processes may copy from each other (process_vm_readv): a large message is copied once",
        ),
        Err(why) => Finding::warn(
            CHECK,
            format!(
                "processes may not copy from each other ({why}): large messages go through the mailbox, which is slower"
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

/// Advice for a host that forbids the copy. `ptrace_scope`: the content of Yama's setting; `None` without Yama.
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
        let offered = Box::new(CONTENT);
        let copy =
            |address| probe(&ProbeArguments { role: Role::Copy { pid: std::process::id() as i32, address } });
        assert_eq!(copy(offered.as_ptr() as usize).unwrap(), 0);
        assert!(copy(8).unwrap_err().to_string().starts_with("process_vm_readv: "));
    }
}
