//! Runs child processes: a job in the foreground with our signals passed on, or a program in the background with a time
//! limit and its output captured. Also decides how signals and a closed pipe end this command.

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

/// Time that a launcher gets after SIGTERM to end its ranks, before SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// Interval between checks of a child with a time limit.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The exit status as shells report it: the exit code, or 128 plus the signal.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    // Exit codes have 8 bits. Otherwise a signal ended the process: `wait` does not report stopped ones.
    u8::try_from(code).unwrap_or(1)
}

/// Lets a closed pipe (`weir doctor | head -1`) end this process by SIGPIPE, as in other programs. Rust ignores
/// SIGPIPE, and `println!` would panic. Child processes do not inherit the handler: `exec` restores the default.
///
/// # Errors
/// Those of the operating system.
pub fn exit_on_closed_pipe() -> io::Result<()> {
    signal_hook::flag::register_conditional_default(SIGPIPE, Arc::new(AtomicBool::new(true))).map(drop)
}

/// Lets SIGINT and SIGTERM end this process with 128 plus the signal, after `before_exit` has returned; it gets the
/// signal. For work that can be abandoned at any point.
///
/// # Errors
/// Those of the operating system.
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

/// Runs `command` with our standard streams and waits for it. Passes on SIGINT, SIGTERM and SIGHUP. Signals of the
/// terminal (Ctrl-C) reach the child directly, since it is in our process group.
///
/// # Errors
/// Those of starting and waiting.
pub fn run_in_foreground(command: &mut Command) -> io::Result<ExitStatus> {
    let mut signals = SignalsInfo::<WithOrigin>::new([SIGINT, SIGTERM, SIGHUP])?;
    let handle = signals.handle();
    let mut child = command.spawn()?;
    // `None` once the child has been waited for: another process may then have its process id.
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
    // Two steps, so that no signal goes to a process id that is free again.
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

/// The result of a child with a time limit.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its outcome.
    pub end: End,
    /// Its standard output. Bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// The end of a child with a time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It ended itself.
    Exited(ExitStatus),
    /// It was ended at its time limit.
    TimedOut,
    /// It was ended because `keep_running` returned false.
    Stopped,
}

impl Output {
    /// Whether it ended itself with status 0.
    pub fn success(&self) -> bool {
        matches!(self.end, End::Exited(status) if status.success())
    }
}

/// The reason why there is no result of a child with a time limit.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It could not be started, or its output could not be read.
    #[error(transparent)]
    System(#[from] io::Error),
    /// This signal ended the command; the child has been ended.
    #[error("ended by signal {0}")]
    Interrupted(i32),
}

/// Runs `command` without input for at most `limit`. At the limit, or on SIGINT or SIGTERM to us, the child gets
/// SIGTERM and then SIGKILL. The child leads its own process group, so that the processes of a launcher end with it.
///
/// # Errors
/// [`CaptureError`].
pub fn capture(command: Command, limit: Duration) -> Result<Output, CaptureError> {
    capture_while(command, limit, || true)
}

/// [`capture`] that also ends the child as soon as `keep_running`, called every 10 ms, returns false.
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
    // Files instead of pipes: a pipe stays open while any descendant lives, and reading it would block.
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

/// The signal that this process got, or 0. The handler is registered once.
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
