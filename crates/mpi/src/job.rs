//! Child processes: running one in the foreground with our signals passed on, and running one with a time limit.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Signals, SignalsInfo};

/// How long a launcher gets to end its ranks after SIGTERM, before SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// How often a child with a time limit is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The status as shells tell it: the exit code, or 128 and the number of the signal.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    // Exit codes have 8 bits; what is neither is a stopped process, which `wait` does not report.
    u8::try_from(code).unwrap_or(1)
}

/// From now on a closed pipe (`weir doctor | head -1`) ends this process by SIGPIPE, as it ends others; Rust ignores the signal
/// and then panics in `println!`. Programs that we start do not inherit this: handlers end with `exec`, and the default remains.
///
/// # Errors
/// What the operating system says.
pub fn exit_on_closed_pipe() -> io::Result<()> {
    signal_hook::flag::register_conditional_default(SIGPIPE, Arc::new(AtomicBool::new(true))).map(drop)
}

/// From now on SIGINT and SIGTERM end this process with 128 and their number, as soon as `before_exit`, which gets that number, has
/// returned: for work that cannot be asked to stop, and may be left wherever it is.
///
/// # Errors
/// What the operating system says.
pub fn terminate_on_signal(before_exit: impl FnOnce(i32) + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            before_exit(signal);
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Runs `command` with our own standard streams and waits for it. SIGINT, SIGTERM and SIGHUP that are sent to us are
/// passed on; what the terminal sends (Ctrl-C) has reached the child already, since it shares our process group.
///
/// # Errors
/// Those of starting and waiting.
pub fn run_in_foreground(command: &mut Command) -> io::Result<ExitStatus> {
    let mut signals = SignalsInfo::<WithOrigin>::new([SIGINT, SIGTERM, SIGHUP])?;
    let handle = signals.handle();
    let mut child = command.spawn()?;
    // `None` once the child has been waited for: its process id may belong to somebody else then.
    let target = Arc::new(Mutex::new(Some(pid_of(&child))));
    let seen_by_thread = Arc::clone(&target);
    let forwarder = std::thread::spawn(move || {
        for origin in &mut signals {
            let by_terminal = origin.process.is_none();
            let target = seen_by_thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if let (false, Some(pid), Ok(signal)) = (by_terminal, *target, Signal::try_from(origin.signal)) {
                // A child that has just ended needs no signal.
                let _ = kill(pid, signal);
            }
        }
    });
    // Waited for in two steps, so that no signal can be passed on to a process id that is free again.
    let ended = loop {
        match waitid(Id::Pid(pid_of(&child)), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Err(nix::errno::Errno::EINTR) => {}
            other => break other,
        }
    };
    *target.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
    let status = ended.map_err(io::Error::from).and_then(|_| child.wait());
    handle.close();
    let _ = forwarder.join();
    status
}

/// What a child with a time limit has left.
#[derive(Clone, Debug)]
pub struct Output {
    /// How it ended.
    pub end: End,
    /// Its standard output. Bytes that are no UTF-8 are replaced.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// How a child with a time limit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself.
    Exited(ExitStatus),
    /// We ended it.
    TimedOut,
    /// We ended it because the caller's watch said so.
    Stopped,
}

impl Output {
    /// Whether it ended by itself and well.
    pub fn success(&self) -> bool {
        matches!(self.end, End::Exited(status) if status.success())
    }
}

/// Why a child with a time limit has no output.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It could not be started, or its output not be read.
    #[error(transparent)]
    System(#[from] io::Error),
    /// We were told to stop by this signal; the child has been ended.
    #[error("ended by signal {0}")]
    Interrupted(i32),
}

/// Runs `command` without input for at most `limit`. On time-out, or on SIGINT or SIGTERM to us, it is asked to end and
/// then killed. The child leads its own process group, so that launchers can be ended with what they started.
///
/// # Errors
/// [`CaptureError`].
pub fn capture(command: Command, limit: Duration) -> Result<Output, CaptureError> {
    capture_while(command, limit, || true)
}

/// The same, and ends the child as soon as `keep_running`, asked every 10 ms, says no.
///
/// # Errors
/// [`CaptureError`].
pub fn capture_while(
    mut command: Command,
    limit: Duration,
    mut keep_running: impl FnMut() -> bool,
) -> Result<Output, CaptureError> {
    use std::os::unix::process::CommandExt;
    let interrupted = interrupt_flag()?;
    // Files, not pipes: a pipe stays open while any forgotten descendant lives, and reading it would hang.
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).process_group(0);
    let mut child = command.spawn()?;
    let started = Instant::now();
    let end = loop {
        if let Some(status) = child.try_wait()? {
            break End::Exited(status);
        }
        let signal = interrupted.load(Ordering::Relaxed);
        if signal != 0 {
            kill_process_group(&mut child)?;
            return Err(CaptureError::Interrupted(signal as i32));
        }
        if started.elapsed() > limit {
            kill_process_group(&mut child)?;
            break End::TimedOut;
        }
        if !keep_running() {
            kill_process_group(&mut child)?;
            break End::Stopped;
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    Ok(Output { end, stdout: read_all(&mut stdout)?, stderr: read_all(&mut stderr)? })
}

fn read_all(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn kill_process_group(child: &mut Child) -> io::Result<()> {
    let group = Pid::from_raw(-pid_of(child).as_raw());
    let _ = kill(group, Signal::SIGTERM);
    let asked = Instant::now();
    while asked.elapsed() < GRACE {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let _ = kill(group, Signal::SIGKILL);
    child.wait()?;
    Ok(())
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("process ids are positive and below 2^22"))
}

/// Number of the signal that told us to stop, or 0. Registered once.
fn interrupt_flag() -> io::Result<&'static Arc<AtomicUsize>> {
    static FLAG: OnceLock<Arc<AtomicUsize>> = OnceLock::new();
    if let Some(flag) = FLAG.get() {
        return Ok(flag);
    }
    let flag = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_usize(signal, Arc::clone(&flag), signal as usize)?;
    }
    Ok(FLAG.get_or_init(|| flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_status_are_kept() {
        let output = capture(shell("echo out; echo err >&2; exit 3"), Duration::from_secs(10)).unwrap();
        assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));
        let End::Exited(status) = output.end else { panic!("{output:?}") };
        assert_eq!(exit_code(status), 3);
        assert!(!output.success());
    }

    #[test]
    fn a_child_is_terminated_at_its_time_limit() {
        let output = capture(shell("echo begun; sleep 100"), Duration::from_millis(100)).unwrap();
        assert_eq!(output.end, End::TimedOut);
        assert_eq!(output.stdout, "begun\n");
    }

    #[test]
    fn a_child_is_terminated_when_the_callback_returns_false() {
        let begun = Instant::now();
        let looks = std::cell::Cell::new(0);
        let keep_running = || {
            looks.set(looks.get() + 1);
            looks.get() < 5
        };
        let output = capture_while(shell("sleep 100"), Duration::from_secs(50), keep_running).unwrap();
        assert_eq!((output.end, looks.get()), (End::Stopped, 5));
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn death_by_signal_gives_128_plus_its_number() {
        let output = capture(shell("kill -9 $$"), Duration::from_secs(10)).unwrap();
        let End::Exited(status) = output.end else { panic!("{output:?}") };
        assert_eq!(exit_code(status), 137);
    }
}
