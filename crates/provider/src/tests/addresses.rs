//! Tests of address vectors: types, malformed addresses, removal and reuse of numbers, messages of a removed peer. Removal and
//! reuse over each link.

use super::*;

type Bytes = [u8; ADDRESS_BYTES];

impl Side {
    fn vector(&self) -> &VectorHandle {
        self.vector.as_ref().expect("open")
    }

    /// `fi_av_insert` with these flags: its result, the numbers and the errors.
    fn insert(&self, addresses: &[Bytes], flags: u64) -> (c_int, Vec<FiAddr>, Vec<c_int>) {
        let (mut numbers, mut errors) = (vec![77; addresses.len()], vec![77; addresses.len()]);
        let (to, errors_to) = (OutArray::from(&mut numbers[..]), OutArray::from(&mut errors[..]));
        let table = table(self.vector().ops);
        let (from, count) = (InArray::from(addresses), addresses.len());
        let inserted = (table.insert)(self.vector(), from, count, to, flags, errors_to);
        (inserted, numbers, errors)
    }

    fn remove(&self, number: FiAddr, flags: u64) -> c_int {
        (table(self.vector().ops).remove)(self.vector(), InArray::from(&[number][..]), 1, flags)
    }

    /// `fi_av_lookup`: its result, and the address, with a buffer of `room` bytes.
    fn lookup(&self, number: FiAddr, room: usize) -> Result<(Bytes, usize), c_int> {
        let (mut address, mut bytes) = ([0xEE; ADDRESS_BYTES], room);
        let to = OutArray::from(&mut address[..]);
        match (table(self.vector().ops).lookup)(self.vector(), number, to, Out::from(&mut bytes)) {
            0 => Ok((address, bytes)),
            error => Err(error),
        }
    }

    /// Sends `mark` to number 1 with this tag.
    fn send_mark(&self, mark: u8, tag: u64) {
        self.inject(&mut [mark; 4], tag);
    }
}

/// Two sides with `FI_SOURCE`.
fn pair_with_sources() -> (Side, Side) {
    pair(threading::SAFE, 0) // without caps, an endpoint gets all
}

/// Both make progress, so that what was sent arrives soon over any link.
fn exchange(one: &Side, other: &Side) {
    for _ in 0..100 {
        one.progress();
        other.progress();
    }
}

#[test]
fn maps_and_tables_number_addresses_alike_and_other_types_are_refused() {
    let side = Side::open(threading::SAFE, version(1, 21), cq_format::TAGGED, 0);
    let other = Side::open(threading::SAFE, version(1, 21), cq_format::TAGGED, 0);
    for av_type in [av_type::MAP, av_type::TABLE] {
        let mut attr = FiAvAttr { av_type, ..zeroed() };
        let vector: Box<VectorHandle> =
            opened(|out| (table(side.domain.ops).av_open)(&side.domain, Some(&mut attr), out, 0));
        assert_eq!(attr.av_type, av_type);
        let mut numbers = [77; 2];
        let addresses = [side.address(), other.address()];
        let to = OutArray::from(&mut numbers[..]);
        let from = InArray::from(&addresses[..]);
        assert_eq!((table(vector.ops).insert)(&vector, from, 2, to, 0, OutArray::none()), 2);
        assert_eq!(numbers, [0, 1]);
        assert_eq!((ops::<VectorHandle>(&vector.fid).close)(vector), 0);
    }
    for av_type in [-1, 3] {
        let mut attr = FiAvAttr { av_type, ..zeroed() };
        let mut made = std::ptr::null_mut();
        let open = table(side.domain.ops).av_open;
        assert_eq!(open(&side.domain, Some(&mut attr), Out::from(&mut made), 0), -22);
    }
}

#[test]
fn malformed_addresses_get_no_number() {
    let side = Side::open(threading::SAFE, version(1, 21), cq_format::TAGGED, 0);
    let (mut good, zero) = (side.address(), [0; ADDRESS_BYTES]);
    let (inserted, numbers, errors) = side.insert(&[zero, good], flags::SYNC_ERR | flags::MORE);
    assert_eq!((inserted, &numbers[..], &errors[..]), (1, &[ADDR_UNSPEC, 0][..], &[22, 0][..]));
    let (inserted, _, errors) = side.insert(&[good], 0);
    assert_eq!((inserted, &errors[..]), (1, &[77][..]), "without FI_SYNC_ERR the context is no array");
    assert_eq!(side.insert(&[good], 1 << 41).0, -260); // FI_AV_USER_ID
    good[0] ^= 0xFF;
    assert_eq!(side.insert(&[good], 0).0, 0);
    assert_eq!(side.lookup(1, 64), Err(-22));
}

#[test]
fn lookups_return_what_fits_and_the_whole_length() {
    let (one, other) = pair_with_sources();
    let address = other.address();
    assert_eq!(one.lookup(1, 64), Ok((address, 64)));
    let (part, bytes) = one.lookup(1, 10).expect("it is there");
    assert_eq!((&part[..10], &part[10..], bytes), (&address[..10], &[0xEE; 54][..], 64));
    assert_eq!(one.lookup(2, 64), Err(-22));
    assert_eq!(one.lookup(ADDR_UNSPEC, 64), Err(-22));
}

#[test]
fn the_text_of_an_address_ends_with_nul_and_does_not_show_the_key() {
    let one = Side::open(threading::SAFE, version(1, 21), cq_format::TAGGED, 0);
    let address = one.address();
    let text = |room: usize| {
        let (mut text, mut bytes) = (vec![0xEE_u8; 200], room);
        let ops = table(one.vector().ops);
        let to = OutArray::from(&mut text[..]);
        let returned = (ops.straddr)(one.vector(), InArray::from(&[address][..]), to, Out::from(&mut bytes));
        assert_eq!(returned, text.as_ptr().cast());
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(0);
        (String::from_utf8_lossy(&text[..end]).into_owned(), bytes)
    };
    let (whole, bytes) = text(200);
    assert!(whole.starts_with("weir:") && bytes == whole.len() + 1, "{whole}");
    let key: String = address[16..32].iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!whole.contains(&key), "{whole}");
    assert_eq!(text(9), (whole[..8].to_string(), bytes));
}

#[test]
fn a_removed_peer_is_nameless_until_it_is_inserted_again() {
    over_each_link(|| {
        let (one, other) = pair_with_sources();
        let mut to = [[0; 4]; 5];
        let [first, second, third, fourth, fifth] = &mut to;
        one.send_mark(1, 1);
        other.receive(first, 1, 1, 1);
        assert_eq!(other.read(&one).expect("a message").1, 1);

        assert_eq!(other.remove(1, 1), -260);
        assert_eq!(other.remove(1, 0), 0);
        assert_eq!(other.remove(1, 0), -22);
        assert_eq!(other.lookup(1, 64), Err(-22));
        // Nobody can be named by the number.
        let null = std::ptr::null_mut();
        let sent = (other.tagged().send)(other.endpoint(), buffer(&mut [1; 4]), 4, null, 1, 1, 1);
        assert_eq!(sent, -22);
        let received = (other.tagged().recv)(other.endpoint(), buffer(second), 4, null, 1, 1, 0, 1);
        assert_eq!(received, -22);
        // But its messages arrive.
        one.send_mark(2, 1);
        other.receive(second, ADDR_UNSPEC, 1, 2);
        assert_eq!(other.read(&one).expect("a message").1, ADDR_UNSPEC);

        // The same address again, under its old number, also for a message that arrived in between.
        one.send_mark(3, 1);
        exchange(&one, &other);
        assert_eq!(other.insert(&[one.address()], 0).1, [1]);
        other.receive(third, 1, 1, 3);
        assert_eq!(other.read(&one).expect("a message").1, 1);
        other.send_mark(4, 2);
        one.receive(fourth, 1, 2, 4);
        assert_eq!(one.read(&other).expect("a message").1, 1);

        // Another number for the same peer.
        assert_eq!(other.remove(0, 0), 0);
        assert_eq!(other.remove(1, 0), 0);
        assert_eq!(other.insert(&[one.address()], 0).1, [0]);
        one.send_mark(5, 1);
        other.receive(fifth, 0, 1, 5);
        assert_eq!(other.read(&one).expect("a message").1, 0);
        assert_eq!(to, [[1; 4], [2; 4], [3; 4], [4; 4], [5; 4]]);
    });
}

#[test]
fn another_peer_can_get_the_number_of_a_removed_one() {
    over_each_link(|| {
        let (one, other) = pair_with_sources();
        let third = Side::open(threading::SAFE, version(1, 21), cq_format::TAGGED, 0);
        third.insert_addresses(&[third.address(), other.address()]);
        let mut to = [[0; 4]; 4];
        let [first, second, last, answer] = &mut to;
        one.send_mark(1, 1);
        other.receive(first, 1, 1, 1);
        assert_eq!(other.read(&one).expect("a message").1, 1);
        assert_eq!(other.remove(1, 0), 0);
        assert_eq!(other.insert(&[third.address()], 0).1, [1]);
        one.send_mark(2, 1);
        exchange(&one, &other);
        third.send_mark(3, 1);
        other.receive(second, 1, 1, 2); // from the third
        assert_eq!(other.read(&third).expect("a message").1, 1);
        other.receive(last, ADDR_UNSPEC, 1, 3);
        assert_eq!(other.read(&one).expect("a message").1, ADDR_UNSPEC);
        // A message to the number goes to the new peer.
        other.send_mark(4, 2);
        third.receive(answer, ADDR_UNSPEC, 2, 4);
        assert_eq!(third.read(&other).expect("a message").1, 1);
        assert_eq!(to, [[1; 4], [3; 4], [2; 4], [4; 4]]);
    });
}
