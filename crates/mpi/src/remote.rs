//! A helper of this command on another host ([`Helper`]), started by the remote shell that the MPI's launcher uses too. It
//! starts no ranks. It prepares directories, and later sends the files that the ranks of its host have left.
//!
//! ```text
//! weir run                       ssh h2 /opt/weir/bin/weir host-helper
//!                                <-- weir-host {"version":"0.1.0","wire":..,"host":"h2"}      lines before it are skipped
//! {"Begin":{...}}            -->
//!                                <-- {"Begun":{...}}
//! {"Gather":{}}              -->
//!                                <-- {"Files":{...}}, then the bytes of the files
//! closes its end             -->     the helper removes its directories, and ends
//! ```
//! Requests and answers are a line of JSON each ([`Request`], [`Answer`]). The helper ends with the connection, so nothing
//! stays on a host if this command is killed.

mod messages;

pub use messages::{Answer, Begun, Gathered, GatheredFile, Greeting, Opened, Place, Request, TOKEN};

use crate::launch::SSH;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What a helper prints first, before its greeting.
pub const GREETING: &str = "weir-host ";
/// Time for the remote shell to reach a host and to start the helper.
const START: Duration = Duration::from_secs(30);
/// Lines that a remote shell may print before the helper does.
const MOST_NOISE: usize = 1000;
/// The longest line. Unit: bytes.
const LONGEST_LINE: u64 = 16 << 20;
/// The longest content of the files of one answer. Unit: bytes.
const MOST_BYTES: u64 = 4 << 30;
/// Time that a helper gets to end itself.
const GRACE: Duration = Duration::from_secs(3);
/// Interval between two looks at a helper that should end.
const LOOK: Duration = Duration::from_millis(5);

/// An answer, and the bytes of its files.
type Received = Result<(Answer, Vec<u8>), String>;

/// The helper on a host. Dropping it ends the helper.
#[derive(Debug)]
pub struct Helper {
    host: String,
    child: Child,
    requests: Option<ChildStdin>,
    answers: Receiver<Received>,
    errors: std::fs::File,
    greeting: Option<Greeting>,
    started: Instant,
}

impl Helper {
    /// Starts the helper on `host`, and does not wait for it. `program`: this command, at the same place on that host.
    ///
    /// # Errors
    /// A line for the user: the remote shell cannot be started.
    pub fn start(remote_shell: &str, host: &str, program: &Path) -> Result<Helper, String> {
        let cannot = |error: io::Error| format!("{host}: cannot start {remote_shell}: {error}");
        let mut errors = tempfile::tempfile().map_err(cannot)?;
        let mut command = Command::new(remote_shell);
        if remote_shell == SSH {
            command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
        }
        command.arg(host).arg(format!("{} host-helper", quoted(program)));
        // It leads its own group: a signal of the terminal ends the job, and the files are gathered then.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors.try_clone().map_err(cannot)?);
        let mut child = command.spawn().map_err(cannot)?;
        let requests = child.stdin.take();
        let (sender, answers) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut stdout = BufReader::new(stdout);
                let mut next = skip_noise(&mut stdout).map(|greeting| (Answer::Greeting(greeting), vec![]));
                loop {
                    let failed = next.is_err();
                    if sender.send(next).is_err() || failed {
                        break;
                    }
                    next = receive(&mut stdout);
                }
            });
        }
        let _ = errors.rewind();
        Ok(Helper {
            host: host.to_owned(),
            child,
            requests,
            answers,
            errors,
            greeting: None,
            started: Instant::now(),
        })
    }

    /// Its host, as the file of hosts names it.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// What the helper says about itself. The first call waits for it.
    ///
    /// # Errors
    /// A line for the user, with what the remote shell has printed.
    pub fn greeting(&mut self) -> Result<Greeting, String> {
        if let Some(greeting) = &self.greeting {
            return Ok(greeting.clone());
        }
        match self.answer(START.saturating_sub(self.started.elapsed()))? {
            Answer::Greeting(greeting) => {
                self.greeting = Some(greeting.clone());
                Ok(greeting)
            }
            other => Err(format!("{}: unexpected answer of the helper: {other:?}", self.host)),
        }
    }

    /// Sends a request. [`Helper::answer`] waits for the answer.
    ///
    /// # Errors
    /// A line for the user.
    pub fn request(&mut self, request: &Request) -> Result<(), String> {
        let line = serde_json::to_string(request).map_err(|error| error.to_string())?;
        let sent = match &mut self.requests {
            Some(requests) => without_signal(|| writeln!(requests, "{line}").and_then(|()| requests.flush())),
            None => Ok(()),
        };
        sent.map_err(|error| self.explain(&error.to_string()))
    }

    /// Whether the remote shell has ended, and the helper with it.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// The next answer; files with their bytes.
    ///
    /// # Errors
    /// A line for the user: the helper has ended, does not answer within `limit`, or reports an error.
    pub fn answer(&mut self, limit: Duration) -> Result<Answer, String> {
        match self.answers.recv_timeout(limit) {
            Ok(Ok((Answer::Failed(error), _))) => Err(format!("{}: {error}", self.host)),
            Ok(Ok((Answer::Files(mut gathered), bytes))) => {
                gathered.bytes = bytes;
                Ok(Answer::Files(gathered))
            }
            Ok(Ok((answer, _))) => Ok(answer),
            Ok(Err(error)) => Err(self.explain(&error)),
            Err(RecvTimeoutError::Timeout) => Err(self.explain(&format!("no answer within {limit:.1?}"))),
            Err(RecvTimeoutError::Disconnected) => Err(self.explain("it has ended")),
        }
    }

    /// [`Helper::request`] and [`Helper::answer`].
    ///
    /// # Errors
    /// As both.
    pub fn ask(&mut self, request: &Request, limit: Duration) -> Result<Answer, String> {
        self.request(request)?;
        self.answer(limit)
    }

    /// An error with the last line that the remote shell has printed.
    fn explain(&mut self, error: &str) -> String {
        // What it prints at its end may come a little later than the end of its output.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(200) && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK);
        }
        let mut text = String::new();
        let _ = self.errors.rewind();
        let _ = (&mut self.errors).take(64 << 10).read_to_string(&mut text);
        let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        match last {
            "" => format!("{}: {error}", self.host),
            last => format!("{}: {error}: {last}", self.host),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.requests.take());
        let begun = Instant::now();
        while begun.elapsed() < GRACE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes to a pipe whose other end may be gone. That is an error here, and does not end this process by SIGPIPE.
fn without_signal(write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let pipe = SigSet::from(Signal::SIGPIPE);
    let before = pipe.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let written = write();
    if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        && !before.contains(Signal::SIGPIPE)
    {
        // The signal waits for this thread.
        pipe.wait()?;
    }
    before.thread_set_mask()?;
    written
}

/// A path as one word of the shell on another host.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}

fn line_of(stdout: &mut impl BufRead) -> Result<String, String> {
    let mut line = Vec::new();
    let read = stdout.take(LONGEST_LINE).read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
    if read == 0 {
        return Err(String::from("the helper has ended"));
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

/// The greeting. A login script may print lines before it.
fn skip_noise(stdout: &mut impl BufRead) -> Result<Greeting, String> {
    let mut noise = VecDeque::new();
    for _ in 0..MOST_NOISE {
        let line = match line_of(stdout) {
            Ok(line) => line,
            Err(error) => {
                let last: Option<String> = noise.pop_back();
                return Err(last.map_or(error.clone(), |last| format!("{error}: {last}")));
            }
        };
        if let Some(greeting) = line.strip_prefix(GREETING) {
            return serde_json::from_str(greeting).map_err(|error| format!("greeting {greeting:?}: {error}"));
        }
        noise.push_back(line);
    }
    Err(format!("no greeting of the helper within {MOST_NOISE} lines"))
}

/// The greeting and the answers in what a helper has printed, for fuzzers. Files have their bytes.
pub fn read_all(mut printed: &[u8]) -> Vec<Answer> {
    let mut answers: Vec<_> = skip_noise(&mut printed).into_iter().map(Answer::Greeting).collect();
    while let Ok((mut answer, content)) = receive(&mut printed) {
        if let Answer::Files(gathered) = &mut answer {
            gathered.bytes = content;
        }
        answers.push(answer);
    }
    answers
}

fn receive(stdout: &mut impl BufRead) -> Received {
    let line = line_of(stdout)?;
    let answer: Answer =
        serde_json::from_str(&line).map_err(|error| format!("answer of the helper: {error}"))?;
    let mut bytes = Vec::new();
    if let Answer::Files(gathered) = &answer {
        let total = gathered.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
        if total > MOST_BYTES {
            return Err(format!("its files have {total} bytes; at most {MOST_BYTES} are taken"));
        }
        stdout.take(total).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() as u64 != total {
            return Err(format!("its files end after {} of {total} bytes", bytes.len()));
        }
    }
    Ok((answer, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A remote shell that runs `script`. Its first argument is the host, its second the command.
    fn shell(script: &str) -> (tempfile::TempDir, String) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shell");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let name = path.to_str().unwrap().to_owned();
        (directory, name)
    }

    fn greeting_line() -> String {
        let greeting = Greeting { version: "1".into(), formats: [1, 2, 3], host: "h".into() };
        format!("{GREETING}{}", serde_json::to_string(&greeting).unwrap())
    }

    #[test]
    fn the_greeting_comes_after_lines_of_login_scripts() {
        let script = format!("echo welcome to $1; echo '{}'; cat >/dev/null", greeting_line());
        let (_directory, shell) = shell(&script);
        let mut helper = Helper::start(&shell, "h2", Path::new("/opt/it's/weir")).unwrap();
        assert_eq!(helper.greeting().unwrap().version, "1");
        assert_eq!(helper.greeting().unwrap().host, "h");
    }

    #[test]
    fn the_program_is_one_word_of_the_other_shell() {
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }

    #[test]
    fn an_error_has_what_the_remote_shell_says() {
        let (_directory, shell) = shell("echo 'Permission denied (publickey).' >&2; exit 255");
        let error = Helper::start(&shell, "h2", Path::new("/w")).unwrap().greeting().unwrap_err();
        assert_eq!(error, "h2: the helper has ended: Permission denied (publickey).");
        let error = Helper::start("/no/such/shell", "h2", Path::new("/w")).unwrap_err();
        assert!(error.starts_with("h2: cannot start /no/such/shell: No such file"), "{error}");
    }

    #[test]
    fn files_come_with_their_bytes() {
        let gathered = Gathered {
            files: vec![GatheredFile { place: Place::Stats, name: "a.weir".into(), bytes: 3 }],
            ..Gathered::default()
        };
        let answer = serde_json::to_string(&Answer::Files(gathered)).unwrap();
        let script =
            format!("echo '{}'; read line; echo '{answer}'; printf abc; cat >/dev/null", greeting_line());
        let (_directory, shell) = shell(&script);
        let mut helper = Helper::start(&shell, "h2", Path::new("/w")).unwrap();
        helper.greeting().unwrap();
        let answer = helper.ask(&Request::Gather, Duration::from_secs(10)).unwrap();
        let Answer::Files(gathered) = answer else { panic!("{answer:?}") };
        assert_eq!(gathered.contents().collect::<Vec<_>>(), [(&gathered.files[0], &b"abc"[..])]);
    }

    #[test]
    fn a_helper_that_has_ended_is_an_error_and_no_signal() {
        // As in the command. The default of a test process is to ignore the signal.
        crate::job::exit_on_closed_pipe().unwrap();
        let (_directory, shell) =
            shell(&format!("echo '{}'; exec <&- ; sleep 0.3; echo gone >&2", greeting_line()));
        let mut helper = Helper::start(&shell, "h2", Path::new("/w")).unwrap();
        helper.greeting().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(!helper.has_ended());
        let error = helper.ask(&Request::Gather, Duration::from_secs(10)).unwrap_err();
        assert!(error.starts_with("h2: ") && error.contains("pipe"), "{error}");
        helper.child.wait().unwrap();
        assert!(helper.has_ended());
    }

    #[test]
    fn a_silent_helper_is_given_up() {
        let script = format!("echo '{}'; exec sleep 30", greeting_line());
        let (_directory, shell) = shell(&script);
        let mut helper = Helper::start(&shell, "h2", Path::new("/w")).unwrap();
        helper.greeting().unwrap();
        let error = helper.ask(&Request::Gather, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error, "h2: no answer within 50.0ms");
    }
}
