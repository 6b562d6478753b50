//! Helpers that the tests of the shared-memory link share.
#![allow(dead_code, missing_docs, reason = "each test file uses a part")]

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::path::Path;
use weir_link::memory::UserMemory;
use weir_link::shm::{SchemeName, ShmLink, ShmOptions};
use weir_link::{
    ADDRESS_BYTES, Address, Arrival, CopyStatus, LaneLease, Link, Quota, RemoteCopy, RemoteMemory,
};
use weir_proto::{Body, CopyFault, Direction, Packet, Peer, PeerFault, RemoteAddress, Space};

pub fn options(dir: &Path) -> ShmOptions {
    ShmOptions {
        dir: dir.to_owned(),
        in_memory: false,
        reserved_lanes: 0,
        ranks: 0,
        needed_bytes: 0,
        is_private: false,
        quota_data_slots: 64,
        quota_rest_lanes: 0,
        start_slots: 0,
        credit_slots: 2,
        max_lanes: 16,
        cross_memory: true,
        full_fences: false,
        cooperative_copy: true,
        conditional: false,
        refused_limit: std::time::Duration::from_secs(10),
        scheme: SchemeName::new("static"),
    }
}

pub fn open(dir: &Path) -> ShmLink {
    ShmLink::open(&options(dir)).expect("a mailbox")
}

/// A directory on a tmpfs, as segments require.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm")
}

pub fn eager(bytes: u32, tag: u64) -> Packet {
    let body = Body::Eager { space: Space::Tagged, tag, data: None, length: bytes, acknowledge: None };
    Packet::new(body, bytes)
}

pub fn tag(packet: &Packet) -> u64 {
    match packet.body {
        Body::Eager { tag, .. } => tag,
        other => panic!("not a message: {other:?}"),
    }
}

pub fn memory(bytes: &mut [u8]) -> UserMemory {
    // SAFETY: every test keeps the bytes longer than the view.
    unsafe { UserMemory::contiguous(bytes.as_mut_ptr(), bytes.len()) }
}

pub fn send(link: &mut ShmLink, to: Peer, tag: u64, bytes: &[u8]) {
    let mut copy = bytes.to_vec();
    link.transmit(to, &eager(bytes.len() as u32, tag), Some((&memory(&mut copy), 0))).expect("never busy");
}

/// Polls until something arrives. Panics after 20 s.
pub fn wait(link: &mut ShmLink) -> Arrival {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while std::time::Instant::now() < end {
        if let Some(arrival) = link.poll() {
            return arrival;
        }
        std::thread::yield_now();
    }
    panic!("nothing came for 20 s");
}

/// Expects a packet. Returns its sender, tag and payload.
pub fn receive(link: &mut ShmLink) -> (Peer, u64, Vec<u8>) {
    match wait(link) {
        Arrival::Packet { from, packet } => {
            let mut bytes = vec![0; packet.payload_bytes as usize];
            link.copy_payload(&memory(&mut bytes), 0, packet.payload_bytes.into());
            link.retire();
            (from, tag(&packet), bytes)
        }
        other => panic!("expected a packet: {other:?}"),
    }
}

/// Expects a new lane and accepts it as `peer`.
pub fn accept(link: &mut ShmLink, peer: Peer) -> Address {
    match wait(link) {
        Arrival::Attached { lane, address, .. } => {
            link.accept(lane, peer);
            address
        }
        other => panic!("expected an attachment: {other:?}"),
    }
}

/// The quota of a sender that got its lane at once.
pub fn quota(connected: Result<Option<LaneLease>, PeerFault>) -> Quota {
    connected.expect("connected").expect("a lane").quota
}

/// Copies in the call, or starts a copy with the name 7.
pub fn copy(
    link: &mut ShmLink,
    peer: Peer,
    direction: Direction,
    address: u64,
    memory: &UserMemory,
    offset: u64,
    bytes: u64,
) -> Result<CopyStatus, CopyFault> {
    let remote = RemoteAddress::without_key(address);
    link.start(&RemoteCopy { context: 7, peer, direction, remote, offset, bytes }, memory, None)
}

/// The end of the endpoint at `address`, as `link` reports it for `peer`. `None`: it runs and reads.
pub fn end_of(link: &mut ShmLink, peer: Peer, address: &Address) -> Option<PeerFault> {
    link.check_peer(peer, address);
    match link.poll() {
        None => None,
        Some(Arrival::Lost { peer: lost, fault }) if lost == peer => Some(fault),
        other => panic!("expected at most a loss: {other:?}"),
    }
}

/// Sends `Detach` and ends the lease.
pub fn detach(link: &mut ShmLink, to: Peer) {
    link.transmit(to, &Packet::new(Body::Detach, 0), None).expect("never busy");
    link.disconnect(to);
}

/// Runs `child` in a forked process. The process then ends without running any code of the parent.
pub fn fork(child: impl FnOnce()) -> i32 {
    // SAFETY: the child runs the closure and then `_exit`. The other threads of the test harness do not exist there,
    // and no closure takes a lock that they may have held.
    match unsafe { libc::fork() } {
        0 => {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(ended.is_err())) }
        }
        pid => {
            assert!(pid > 0, "fork failed");
            pid
        }
    }
}

/// Waits for a forked child; returns its raw status.
pub fn reap(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: our own child; the status lives across the call.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

/// Whether a forked child has ended. It can still be reaped.
pub fn ended(pid: i32) -> bool {
    // SAFETY: zero is a valid `siginfo_t`. It outlives the call, which leaves the child waitable.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        assert_eq!(libc::waitid(libc::P_PID, pid as libc::id_t, &raw mut info, flags), 0);
        info.si_pid() == pid
    }
}

pub fn kill(pid: i32) {
    // SAFETY: this process has forked the child and not reaped it.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

/// An anonymous mapping that forked children share, to pass values.
pub fn shared_words() -> &'static [std::sync::atomic::AtomicU64; 64] {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh shared mapping of zeroes, never unmapped, made of atomics.
    unsafe {
        let base = mmap_anonymous(core::ptr::null_mut(), 4096, access, MapFlags::SHARED).expect("memory");
        &*base.cast()
    }
}

pub fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !happened() {
        assert!(std::time::Instant::now() < end, "{what} did not happen for 20 s");
        std::thread::yield_now();
    }
}

/// Makes `system_calls` fail with EPERM in this process. It cannot be undone, so only children call it.
pub fn forbid(system_calls: &[libc::c_long]) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = vec![op(LOAD, 0, 0, 0)];
    for &call in system_calls {
        program.push(op(JUMP_EQUAL, 0, 1, call as u32));
        program.push(op(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    }
    program.push(op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program and its description outlive the calls, and the kernel checks them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

/// Passes an address to or from a forked child.
pub fn put(words: &[std::sync::atomic::AtomicU64; 64], at: usize, address: Address) {
    for (word, part) in words[at + 1..].iter().zip(address.0.chunks_exact(8)) {
        word.store(
            u64::from_ne_bytes(part.try_into().expect("8 bytes")),
            std::sync::atomic::Ordering::SeqCst,
        );
    }
    words[at].store(1, std::sync::atomic::Ordering::SeqCst);
}

pub fn get(words: &[std::sync::atomic::AtomicU64; 64], at: usize) -> Address {
    until("an address", || words[at].load(std::sync::atomic::Ordering::SeqCst) == 1);
    let mut address = Address([0; ADDRESS_BYTES]);
    for (word, part) in words[at + 1..].iter().zip(address.0.chunks_exact_mut(8)) {
        part.copy_from_slice(&word.load(std::sync::atomic::Ordering::SeqCst).to_ne_bytes());
    }
    address
}

/// Says that the test of this thread tests nothing here. Past the capture of the test harness, so that it shows.
pub fn skipped(reason: &str) {
    let test = std::thread::current().name().map_or_else(String::new, |name| format!(" {name}:"));
    let _ =
        std::io::Write::write_all(&mut std::io::stderr(), format!("skipped:{test} {reason}\n").as_bytes());
}

/// A small tmpfs. Only root can mount one.
pub struct SmallTmpfs(tempfile::TempDir);

impl SmallTmpfs {
    pub fn mount(kib: u64) -> Option<SmallTmpfs> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = std::ffi::CString::new(dir.path().to_str().expect("a name")).expect("no NUL");
        let size = std::ffi::CString::new(format!("size={kib}k")).expect("no NUL");
        let (kind, data) = (c"tmpfs".as_ptr(), size.as_ptr().cast());
        // SAFETY: NUL-terminated strings that live across the call.
        if unsafe { libc::mount(kind, path.as_ptr(), kind, 0, data) } != 0 {
            skipped(&format!(
                "cannot mount a small tmpfs, which needs root: {}",
                std::io::Error::last_os_error()
            ));
            return None;
        }
        Some(SmallTmpfs(dir))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes all free space, as another program may do at any time.
    pub fn fill(&self) {
        let mut file = std::fs::File::create(self.path().join("filler")).expect("a file");
        while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        let path = std::ffi::CString::new(self.path().to_str().expect("a name")).expect("no NUL");
        // SAFETY: a NUL-terminated string that lives across the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

/// The effective user of this process.
pub fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
