//! The other half of `weir bench nic`: barriers and all-reduces of one process on each host, which sleeps while it waits. By the
//! kernel, and by algorithms over bare UDP, without authentication and without sending again, which favours them.

use rustix::time::{ClockId, clock_gettime};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};
use weir_nic::format::DEFAULT_PORT;
use weir_nic::pretended::{ALL, Network, PASS_PORT, address};
use weir_nic::{AllReduce, Barrier, Combination, Domain, Element, Patience};
use weir_output::Failure;

/// The members' port of the algorithms over UDP.
const PORT: u16 = 7001;
/// A packet that takes longer was lost.
const LOST: Duration = Duration::from_secs(2);

/// Length of the vector of an all-reduce: sums of binary64.
pub const ELEMENTS: usize = 16;

/// What the members do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A barrier.
    Barrier,
    /// An all-reduce. Not by exchange.
    AllReduce,
}

/// Who carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The kernel programs.
    Kernel,
    /// Processes: in step k a member sends to the one 2^k behind it, and waits for the one 2^k before it.
    Exchange,
    /// Processes: all send to the first, which then sends to all.
    Gather,
    /// Programs that only count the frames, and copy the last one to all: less is no barrier. Only a barrier, of all hosts.
    Least,
}

/// Mean times of one barrier or all-reduce. Unit: ns.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// From begin to end.
    pub elapsed: f64,
    /// Processor time of one member, with what the kernel did for it.
    pub processor: f64,
}

/// Processor time of this process, in the kernel too. Interrupts count for whom they interrupt. Unit: ns.
pub fn processor_ns() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// A member, ready for one after the other.
type Member = Box<dyn FnMut() -> Result<(), Failure>>;

/// Measures `rounds` barriers or all-reduces of `size` members.
///
/// # Errors
/// [`Failure`].
pub fn measure(
    network: &Network,
    domain: &Domain,
    (work, way): (Work, Way),
    size: u32,
    rounds: u32,
    place: u64,
) -> Result<Times, Failure> {
    let (begin, end) = [(); 2].map(|()| std::sync::Barrier::new(size as usize + 1)).into();
    std::thread::scope(|scope| {
        let members: Vec<_> = (0..size)
            .map(|number| {
                let (begin, end) = (&begin, &end);
                scope.spawn(move || {
                    network.enter(number as usize);
                    let member = prepare(domain, (work, way), number, size, place);
                    begin.wait(); // all sockets are open
                    begin.wait(); // the clock has been read
                    let passed = member.and_then(|mut member| (0..rounds).try_for_each(|_| member()));
                    end.wait();
                    passed
                })
            })
            .collect();
        begin.wait();
        let (clock, processor) = (Instant::now(), processor_ns());
        begin.wait();
        end.wait();
        let (elapsed, processor) = (clock.elapsed().as_nanos() as f64, processor_ns() - processor);
        for member in members {
            member.join().expect("a member does not panic")?;
        }
        let rounds = f64::from(rounds);
        Ok(Times { elapsed: elapsed / rounds, processor: processor / rounds / f64::from(size) })
    })
}

fn prepare(
    domain: &Domain,
    (work, way): (Work, Way),
    number: u32,
    size: u32,
    place: u64,
) -> Result<Member, Failure> {
    if way == Way::Kernel {
        let hosts: Vec<_> =
            (0..size).map(|host| SocketAddrV4::new(address(host as usize), DEFAULT_PORT)).collect();
        let failed = |error: weir_nic::NicError| Failure::Measurement(error.to_string());
        let patience = Patience { spin: Duration::ZERO, ..Patience::default() };
        if work == Work::AllReduce {
            let mut sum = AllReduce::new(domain, &hosts, number, place, patience).map_err(failed)?;
            let vector = vector_of(number).map(f64::to_bits);
            let expected = sum_of_all(size).map(f64::to_bits);
            return Ok(Box::new(move || {
                let result = sum.perform(Combination::Sum, Element::F64, &vector).map_err(failed)?;
                assert_eq!(result, expected, "the sum in the order of members");
                Ok(())
            }));
        }
        let mut barrier = Barrier::new(domain, &hosts, number, place, patience).map_err(failed)?;
        return Ok(Box::new(move || barrier.enter().map_err(failed)));
    }
    let at = if way == Way::Least {
        SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PASS_PORT) // copies have the address of all
    } else {
        SocketAddrV4::new(address(number as usize), PORT)
    };
    let socket = UdpSocket::bind(at).map_err(Failure::system("bind"))?;
    socket.set_read_timeout(Some(LOST)).map_err(Failure::system("setsockopt"))?;
    let mut member = OverUdp { socket, number, size, round: 0, heard: [0; 2] };
    Ok(match way {
        _ if work == Work::AllReduce => {
            // Of rounds with even and with odd numbers.
            let mut vectors = [(); 2].map(|()| vec![vector_of(number); size as usize]);
            let expected = sum_of_all(size);
            Box::new(move || {
                let result = member.sum(&mut vectors)?;
                assert_eq!(result, expected, "the sum in the order of members");
                Ok(())
            })
        }
        Way::Gather => Box::new(move || member.gather()),
        Way::Least => Box::new(move || member.ask_all()),
        _ => Box::new(move || member.exchange()),
    })
}

/// The vector of a member. Sums depend on the order.
fn vector_of(member: u32) -> [f64; ELEMENTS] {
    std::array::from_fn(|at| 0.1 * f64::from(member + 1) + at as f64)
}

/// The sum of the vectors of members 0 to `size`, in their order.
fn sum_of_all(size: u32) -> [f64; ELEMENTS] {
    (1..size).map(vector_of).fold(vector_of(0), |sum, vector| std::array::from_fn(|at| sum[at] + vector[at]))
}

/// Length of a packet of a barrier of kernel programs. Unit: bytes.
const KERNEL_BYTES: usize = 64;
/// Length of a packet. Unit: bytes.
const BYTES: usize = 8 + 8 * ELEMENTS;

/// A member over UDP. Packets are the round, the step or the member, and the vector of an all-reduce.
struct OverUdp {
    socket: UdpSocket,
    number: u32,
    size: u32,
    round: u32,
    /// A bit for each step, or a count, of rounds with even and with odd numbers: nobody is more than one ahead.
    heard: [u32; 2],
}

impl OverUdp {
    fn send(&self, member: u32, step: u32) -> Result<(), Failure> {
        let [round, step] = [self.round, step].map(u32::to_le_bytes);
        let bytes: [u8; 8] = std::array::from_fn(|at| if at < 4 { round[at] } else { step[at - 4] });
        let sent = self.socket.send_to(&bytes, (address(member as usize), PORT));
        sent.map(|_| ()).map_err(Failure::system("send"))
    }

    /// Waits for a packet. Returns its round and step.
    fn receive(&self) -> Result<(u32, u32), Failure> {
        let mut bytes = [0; 8];
        self.socket.recv(&mut bytes).map_err(|_| Failure::Measurement(String::from("a packet was lost")))?;
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        Ok((half(0), half(4)))
    }

    fn send_vector(&self, member: u32, vector: &[f64; ELEMENTS]) -> Result<(), Failure> {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&self.round.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        for (place, element) in bytes[8..].chunks_exact_mut(8).zip(vector) {
            place.copy_from_slice(&element.to_le_bytes());
        }
        let sent = self.socket.send_to(&bytes, (address(member as usize), PORT));
        sent.map(|_| ()).map_err(Failure::system("send"))
    }

    /// Waits for a vector. Returns its round and member too.
    fn receive_vector(&self) -> Result<(u32, u32, [f64; ELEMENTS]), Failure> {
        let mut bytes = [0; BYTES];
        self.socket.recv(&mut bytes).map_err(|_| Failure::Measurement(String::from("a packet was lost")))?;
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let element = |at| f64::from_le_bytes(std::array::from_fn(|byte: usize| bytes[8 + 8 * at + byte]));
        Ok((half(0), half(4), std::array::from_fn(element)))
    }

    /// All send their vector to the first, which combines them in the order of members and sends the sum to all.
    fn sum(&mut self, vectors: &mut [Vec<[f64; ELEMENTS]>; 2]) -> Result<[f64; ELEMENTS], Failure> {
        let now = self.round as usize % 2;
        let own = vectors[now][self.number as usize];
        let sum = if self.number > 0 {
            self.send_vector(0, &own)?;
            self.receive_vector()?.2
        } else {
            while self.heard[now] + 1 < self.size {
                let (round, member, vector) = self.receive_vector()?;
                vectors[round as usize % 2][member as usize] = vector;
                self.heard[round as usize % 2] += 1;
            }
            self.heard[now] = 0;
            let add = |sum: [f64; ELEMENTS], vector: &[f64; ELEMENTS]| {
                std::array::from_fn(|at| sum[at] + vector[at])
            };
            let sum = vectors[now][1..].iter().fold(own, add);
            (1..self.size).try_for_each(|member| self.send_vector(member, &sum))?;
            sum
        };
        self.round += 1;
        Ok(sum)
    }

    /// Sends a frame of the length of those of kernel programs, and waits for the copy of the last one.
    fn ask_all(&mut self) -> Result<(), Failure> {
        let sent = self.socket.send_to(&[0; KERNEL_BYTES], (ALL, PASS_PORT));
        sent.map_err(Failure::system("send"))?;
        self.receive().map(|_| ())
    }

    fn exchange(&mut self) -> Result<(), Failure> {
        let now = self.round as usize % 2;
        for step in (0..u32::BITS).take_while(|step| 1 << step < self.size) {
            self.send((self.number + (1 << step)) % self.size, step)?;
            while self.heard[now] & 1 << step == 0 {
                let (round, step) = self.receive()?;
                self.heard[round as usize % 2] |= 1 << step;
            }
        }
        self.heard[now] = 0;
        self.round += 1;
        Ok(())
    }

    fn gather(&mut self) -> Result<(), Failure> {
        let now = self.round as usize % 2;
        if self.number > 0 {
            self.send(0, 0)?;
            self.receive()?;
        } else {
            while self.heard[now] + 1 < self.size {
                let (round, _) = self.receive()?;
                self.heard[round as usize % 2] += 1;
            }
            self.heard[now] = 0;
            (1..self.size).try_for_each(|member| self.send(member, 0))?;
        }
        self.round += 1;
        Ok(())
    }
}
