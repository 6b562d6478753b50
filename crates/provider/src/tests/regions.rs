//! Tests of memory regions: registration, remote reads and writes.

use super::*;

#[test]
fn remote_writes_and_reads_reach_registered_memory() {
    let (one, other) = pair(threading::SAFE, 0);
    let mut window = [0_u8; 64];
    let mr = table(other.domain.mr);
    let access = flags::REMOTE_READ | flags::REMOTE_WRITE;
    let key = 1 << 63 | 5;
    let window_buffer = buffer(&mut window);
    let region: Box<RegionHandle> =
        opened(|out| (mr.reg)(&other.domain, window_buffer, 64, access, 0, key, 0, out, 0));
    assert_eq!(region.key, key);
    let mut second = std::ptr::null_mut();
    let again = (mr.reg)(&other.domain, window_buffer, 64, access, 0, key, 0, Out::from(&mut second), 0);
    assert_eq!(again, -266);
    let rma = table(one.endpoint().rma);
    let (mut from, null) = ([6; 8], std::ptr::null_mut());
    assert_eq!((rma.write)(one.endpoint(), buffer(&mut from), 8, null, 1, 16, key, 1), 0);
    let entry = one.read(&other).expect("the write").0;
    assert_eq!((entry.op_context, entry.flags), (1, flags::RMA | flags::WRITE));
    let mut to = [0; 8];
    assert_eq!((rma.read)(one.endpoint(), buffer(&mut to), 8, null, 1, 12, key, 2), 0);
    assert_eq!(one.read(&other).expect("the read").0.flags, flags::RMA | flags::READ);
    assert_eq!(to, [0, 0, 0, 0, 6, 6, 6, 6]);
    assert_eq!((rma.injectdata)(one.endpoint(), buffer(&mut from), 8, 77, 1, 0, key), 0);
    let entry = other.read(&one).expect("the notice").0;
    assert_eq!((entry.data, entry.op_context), (77, 0));
    assert_eq!(entry.flags, flags::RMA | flags::REMOTE_WRITE | flags::REMOTE_CQ_DATA);
    // Beyond the end: the target refuses, the source reports it.
    assert_eq!((rma.write)(one.endpoint(), buffer(&mut from), 8, null, 1, 60, key, 3), 0);
    assert_eq!(one.read(&other).unwrap_err(), -259);
    assert_eq!((one.error().err, one.sent()), (13, 2)); // two writes succeeded
    assert_eq!((ops::<RegionHandle>(&region.fid).close)(region), 0);
}

#[test]
fn the_whole_address_space_can_be_a_region() {
    let (one, other) = pair(threading::SAFE, 0);
    let mr = table(other.domain.mr);
    // SAFETY: only the 8 bytes below are accessed.
    let everything = unsafe { UserBuffer::new(std::ptr::null_mut()) };
    let access = flags::REMOTE_READ | flags::REMOTE_WRITE;
    let region: Box<RegionHandle> =
        opened(|out| (mr.reg)(&other.domain, everything, usize::MAX, access, 0, 9, 0, out, 0));
    let (mut from, to, null) = ([8; 8], Box::leak(Box::new([0_u8; 8])), std::ptr::null_mut());
    let rma = table(one.endpoint().rma);
    let address = to.as_mut_ptr() as u64;
    assert_eq!((rma.write)(one.endpoint(), buffer(&mut from), 8, null, 1, address, 9, 1), 0);
    one.read(&other).expect("the write");
    assert_eq!(to, &[8; 8]);
    assert_eq!((ops::<RegionHandle>(&region.fid).close)(region), 0);
}

#[test]
fn long_reads_and_writes_reach_all_pieces_of_a_region() {
    const PIECE_BYTES: usize = 20_000;
    run_in_child(|| {
        let (one, other) = pair(threading::SAFE, 0);
        let mr = table(other.domain.mr);
        let mut window = [vec![1_u8; PIECE_BYTES], vec![2; PIECE_BYTES], vec![3; PIECE_BYTES]];
        let pieces = window
            .each_mut()
            .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: PIECE_BYTES });
        // SAFETY: the pieces outlive the region.
        let vector = unsafe { UserVector::new(pieces.as_ptr()) };
        let access = flags::REMOTE_READ | flags::REMOTE_WRITE;
        let region: Box<RegionHandle> =
            opened(|out| (mr.regv)(&other.domain, vector, pieces.len(), access, 0, 9, 0, out, 0));
        let rma = table(one.endpoint().rma);
        let (mut from, mut to, null) = (vec![8; PIECE_BYTES], vec![0; PIECE_BYTES], std::ptr::null_mut());
        let middle = PIECE_BYTES as u64 / 2;
        assert_eq!((rma.write)(one.endpoint(), buffer(&mut from), PIECE_BYTES, null, 1, middle, 9, 1), 0);
        assert_eq!(one.read(&other).expect("the write").0.op_context, 1);
        assert_eq!((rma.read)(one.endpoint(), buffer(&mut to), PIECE_BYTES, null, 1, 2 * middle, 9, 2), 0);
        assert_eq!(one.read(&other).expect("the read").0.op_context, 2);
        let halves =
            |[first, second]: [u8; 2]| [[first; PIECE_BYTES / 2], [second; PIECE_BYTES / 2]].concat();
        assert_eq!(window, [halves([1, 8]), halves([8, 2]), vec![3; PIECE_BYTES]]);
        assert_eq!(to, halves([8, 2]));
        assert_eq!((ops::<RegionHandle>(&region.fid).close)(region), 0);
    });
}

#[test]
fn regions_with_unknown_arguments_are_rejected() {
    let (one, other) = pair(threading::SAFE, 0);
    let mr = table(one.domain.mr);
    let mut window = [0_u8; 8];
    let window = buffer(&mut window);
    let register = |access, offset, flags| {
        let mut made = std::ptr::null_mut();
        (mr.reg)(&one.domain, window, 8, access, offset, 1, flags, Out::from(&mut made), 0)
    };
    let access = flags::REMOTE_READ;
    assert_eq!(register(access, 8, 0), -22); // reserved, must be 0
    assert_eq!(register(access, 0, 1 << 56), -260); // remote events
    assert_eq!(register(access | 1, 0, 0), -22);
    let attr = FiMrAttr { iov_count: 33, access, ..zeroed() };
    assert_eq!((mr.regattr)(&one.domain, Some(&attr), 0, Out::from(&mut std::ptr::null_mut())), -22);

    let region: Box<RegionHandle> =
        opened(|out| (mr.reg)(&one.domain, window, 8, access | flags::REMOTE_WRITE, 0, 1, 0, out, 0));
    let fid = ops::<RegionHandle>(&region.fid);
    let counter = &one.counter.as_ref().expect("open").fid;
    assert_eq!((fid.bind)(&region, any(counter), flags::REMOTE_WRITE), -38); // the provider cannot count them
    assert_eq!((fid.bind)(&region, any(&one.endpoint().fid), 1), -260);
    assert_eq!((fid.bind)(&region, any(&other.endpoint().fid), 0), -262); // of another domain
    assert_eq!((fid.bind)(&region, any(&one.queue().fid), 0), -22);
    assert_eq!((fid.bind)(&region, any(&one.endpoint().fid), 0), 0);
    assert_eq!((fid.control)(&region, control::ENABLE, std::ptr::null_mut()), 0);
    assert_eq!((fid.close)(region), 0);
}
