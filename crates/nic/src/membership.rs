//! A process of an attached host: its words, which the kernel programs change for others.

use crate::asker::{Asker, Patience};
use crate::control::{self, ANSWER_BYTES, Command};
use crate::format::WORDS;
use crate::multi_send::Home;
use crate::reply_slot::ReplySlots;
use crate::{Domain, Inbox, MultiSend, NicError, Remote, Secret};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use weir_link::shm::shared_words::SharedWords;

/// A place in a domain of an interface of this host. It ends when the value and all that it has made are dropped, or
/// the process ends. With the last one of a domain, its words end.
#[derive(Debug)]
pub struct Membership {
    domain: Domain,
    address: SocketAddrV4,
    words: Arc<SharedWords>,
    slots: Option<Arc<ReplySlots>>,
    connection: Arc<UnixStream>,
}

impl Membership {
    /// Joins the domain of a secret on an interface. The first member of the host finds all words 0.
    ///
    /// # Errors
    /// [`NicError::NotAttached`], [`NicError::Service`], [`NicError::System`].
    pub fn join(interface: &str, secret: &Secret) -> Result<Membership, NicError> {
        let mut connection = control::connect(interface)?;
        let lost = |why| NicError::NotAttached { interface: interface.to_owned(), why };
        connection.write_all(&control::request(Command::Join, secret)).map_err(lost)?;
        let mut bytes = [0; ANSWER_BYTES];
        let file = receive(&connection, &mut bytes).map_err(lost)?;
        let answer = control::understand(interface, &bytes)?;
        let none = || lost(io::Error::other("the answer has no descriptor"));
        let file = file.ok_or_else(none)?;
        let connection = Arc::new(connection);
        let words = SharedWords::map(file.as_fd(), WORDS);
        let slots = answer.slots.map(|first| ReplySlots::map(file.as_fd(), first, connection.clone()));
        Ok(Membership {
            domain: Domain::of(secret),
            address: SocketAddrV4::new(answer.address, answer.port),
            words: words.map(Arc::new).map_err(NicError::system("mmap of the words"))?,
            slots: slots.transpose().map_err(NicError::system("mmap of the reply slots"))?,
            connection,
        })
    }

    /// As [`Remote::new`], for the same job. Of the first 16 of a process, the kernel programs of this host write replies to
    /// memory, so that it finds them without a system call while it spins. 64 processes of a job on a host have such room.
    ///
    /// # Errors
    /// [`NicError::System`].
    pub fn remote(&self, at: SocketAddrV4, patience: Patience) -> Result<Remote, NicError> {
        let asker = Asker::new(&self.domain, at, None)?;
        Ok(Remote::of(asker.with_slot(self.slots.as_ref()), patience))
    }

    fn home(&self) -> Home {
        let (words, connection) = (self.words.clone(), self.connection.clone());
        Home { domain: self.domain, address: *self.address.ip(), words, _connection: connection }
    }

    /// The sender of a multi-send to members on these hosts, in their order, none of which is this one. `place`: a word that
    /// was 0, which nobody uses for anything else. At the receivers, [`crate::INBOX_WORDS`] words from there on are such words.
    ///
    /// The programs of this host make the copies. Frames reach them only from outside, so a receiver's host sends ours
    /// back. It has the message then.
    ///
    /// # Errors
    /// [`NicError::Argument`] for a number of receivers or a place that is not allowed, or a receiver on this host;
    /// [`NicError::System`].
    pub fn multi_send(
        &self,
        receivers: &[SocketAddrV4],
        place: u64,
        patience: Patience,
    ) -> Result<MultiSend, NicError> {
        MultiSend::new(self.home(), receivers, place, patience)
    }

    /// The inbox of receiver number `member` of a multi-send from the host `sender`. Returns when the programs there know it.
    /// So the sender's process must have joined.
    ///
    /// # Errors
    /// [`NicError::Argument`] for a place or number that is not allowed; [`NicError::Refused`], [`NicError::NoAnswer`],
    /// [`NicError::TableFull`], [`NicError::System`].
    pub fn inbox(
        &self,
        sender: SocketAddrV4,
        member: u32,
        place: u64,
        patience: Patience,
    ) -> Result<Inbox, NicError> {
        Inbox::new(self.home(), sender, member, place, patience)
    }

    /// The words of this host, all [`WORDS`] of them. Other members change them at any time.
    pub fn words(&self) -> &SharedWords {
        &self.words
    }

    /// Where other hosts find the words of this one: its address, and the port of the programs.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// The domain, for [`crate::Remote`] and [`crate::Barrier`].
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Whether the programs are still attached. If not, nobody changes the words any more.
    pub fn is_attached(&self) -> bool {
        let connection = self.connection.as_fd();
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let state = rustix::net::recv(connection, &mut [0_u8; 1], flags);
        !matches!(state, Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET))
    }
}

/// Receives an answer, and the descriptor that came with it.
fn receive(connection: &UnixStream, bytes: &mut [u8; ANSWER_BYTES]) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(bytes)];
    let received = recvmsg(connection, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes != ANSWER_BYTES {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    let mut file = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            file = files.into_iter().next().or(file);
        }
    }
    Ok(file)
}
