//! Tests of `fi_getinfo`: the rules for hints, the addresses of an answer, and the texts of mismatches. Most call it
//! through the structure that `fi_prov_ini` returns, as the core does.

use std::ptr::null;

use super::*;

/// Hints with all substructures, all zero.
struct Hints {
    tx: Box<FiTxAttr>,
    rx: Box<FiRxAttr>,
    ep: Box<FiEpAttr>,
    domain: Box<FiDomainAttr>,
    fabric: Box<FiFabricAttr>,
    info: FiInfo,
}

fn zeroed<T>() -> T {
    // SAFETY: used for plain C structures of numbers and pointers only, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

impl Hints {
    fn new(caps: u64) -> Hints {
        let mut hints = Hints {
            tx: Box::new(zeroed()),
            rx: Box::new(zeroed()),
            ep: Box::new(zeroed()),
            domain: Box::new(zeroed()),
            fabric: Box::new(zeroed()),
            info: zeroed(),
        };
        hints.info.caps = caps;
        hints
    }

    fn ask(&mut self) -> Result<Found, c_int> {
        self.info.tx_attr = &raw mut *self.tx;
        self.info.rx_attr = &raw mut *self.rx;
        self.info.ep_attr = &raw mut *self.ep;
        self.info.domain_attr = &raw mut *self.domain;
        self.info.fabric_attr = &raw mut *self.fabric;
        ask(version(2, 5), 0, Some(&self.info))
    }
}

/// An answer. The tests leak it; the core would free it piece by piece.
#[derive(Debug)]
struct Found(*mut FiInfo);

impl Found {
    fn info(&self) -> &FiInfo {
        inner(self.0).expect("there is an answer")
    }
    fn tx(&self) -> &FiTxAttr {
        inner(self.info().tx_attr).expect("tx_attr")
    }
    fn rx(&self) -> &FiRxAttr {
        inner(self.info().rx_attr).expect("rx_attr")
    }
    fn ep(&self) -> &FiEpAttr {
        inner(self.info().ep_attr).expect("ep_attr")
    }
    fn domain(&self) -> &FiDomainAttr {
        inner(self.info().domain_attr).expect("domain_attr")
    }
    fn fabric(&self) -> &FiFabricAttr {
        inner(self.info().fabric_attr).expect("fabric_attr")
    }
}

fn ask(api_version: u32, flags: u64, hints: Option<&FiInfo>) -> Result<Found, c_int> {
    let provider = inner(crate::fi_prov_ini()).expect("the provider is there");
    let mut found = null_mut();
    let null = std::ptr::null();
    match (provider.getinfo)(api_version, null, null, flags, hints, Out::from(&mut found)) {
        0 => Ok(Found(found)),
        error => Err(error),
    }
}

const NO_DATA: c_int = -61;

#[test]
fn the_provider_structure_has_the_expected_fields() {
    let provider = inner(crate::fi_prov_ini()).expect("the provider is there");
    assert_eq!(inner_string(provider.name), Some(c"weir"));
    assert_eq!(provider.fi_version, 2 << 16 | 6);
    assert_eq!(provider.context, [0; 4]);
}

#[test]
fn getinfo_without_hints_offers_all_capabilities() {
    for api_version in [0, version(1, 5), version(1, 17), version(2, 5)] {
        let found = ask(api_version, 0, None).expect("an answer"); // Intel MPI passes version 0.0
        assert_eq!(found.info().caps, DEFAULT_CAPS);
        assert_eq!(found.info().mode, 0);
        assert!(found.fabric().prov_name.is_null()); // the core appends to a name that it finds
        assert_eq!(inner_string(found.fabric().name), Some(c"weir"));
        assert_eq!(inner_string(found.domain().name), Some(c"weir"));
        let mr_mode = if api_version < version(1, 5) { mr_mode::SCALABLE } else { 0 };
        assert_eq!((found.domain().mr_mode, found.domain().threading), (mr_mode, threading::SAFE));
        assert!(found.info().next.is_null());
    }
}

/// The numbers stand here a second time, as fi_endpoint(3) has them: bit 8 is `FI_ORDER_SAS`, bits 36 to 39 are
/// `FI_ORDER_ATOMIC_*`.
#[test]
fn an_answer_without_hints_has_the_orders_and_limits_of_the_provider() {
    const MESSAGES_AND_ATOMICS: u64 = 1 << 8 | 0b1111 << 36;
    for found in [ask(version(2, 5), 0, None), Hints::new(0).ask()] {
        let found = found.expect("an answer");
        let (tx, rx, ep, domain) = (found.tx(), found.rx(), found.ep(), found.domain());
        assert_eq!((tx.msg_order, rx.msg_order), (MESSAGES_AND_ATOMICS, MESSAGES_AND_ATOMICS));
        assert_eq!((tx.comp_order, rx.comp_order), (0, 0), "completions come in any order");
        assert_eq!((tx.iov_limit, rx.iov_limit, tx.rma_iov_limit, domain.mr_iov_limit), (32, 32, 1, 32));
        assert_eq!(tx.inject_size, if inject_bytes() == 4096 { 4096 } else { 256 });
        assert_eq!((tx.size, rx.size), (1024, 1024));
        assert_eq!((ep.max_msg_size, ep.msg_prefix_size), (0x7fff_ffff_ffff_ffff, 0));
        // Remote accesses have no order, so no bytes of them have one.
        let orders = (ep.max_order_raw_size, ep.max_order_war_size, ep.max_order_waw_size);
        assert_eq!(orders, (0, 0, 0));
        assert_eq!((domain.mr_key_size, domain.cq_data_size, domain.mr_cnt), (8, 8, 65536));
    }
}

#[test]
fn atomics_are_for_programs_that_request_them() {
    for found in [ask(version(2, 5), 0, None), Hints::new(0).ask(), Hints::new(caps::RMA).ask()] {
        let found = found.expect("an answer");
        let all = found.info().caps | found.tx().caps | found.rx().caps;
        assert_eq!(all & caps::ATOMIC, 0);
    }
    let mut hints = Hints::new(caps::ATOMIC);
    hints.ep.max_order_waw_size = 4096;
    let found = hints.ask().expect("an answer");
    let directions = caps::READ | caps::WRITE | caps::REMOTE_READ | caps::REMOTE_WRITE;
    assert_eq!(found.info().caps & (caps::ATOMIC | caps::RMA | directions), caps::ATOMIC | directions);
    assert_eq!(found.tx().caps & caps::ATOMIC, caps::ATOMIC);
    assert_eq!(found.rx().caps & caps::ATOMIC, caps::ATOMIC);
    let ep = inner(found.info().ep_attr).expect("ep_attr");
    let orders = (ep.max_order_raw_size, ep.max_order_war_size, ep.max_order_waw_size);
    assert_eq!(orders, (4096, 4096, 4096));
    hints.ep.max_order_waw_size = 4097;
    assert!(hints.ask().is_err());
}

#[test]
fn counter_limits_of_later_versions_are_unlimited() {
    let found = ask(version(2, 5), 0, None).expect("an answer");
    let whole: &FiDomainAttrFull = inner(found.info().domain_attr.cast()).expect("domain_attr");
    assert_eq!((whole.max_cntr_value, whole.max_err_cntr_value), (u64::MAX, u64::MAX));
}

#[test]
fn utility_providers_get_no_info() {
    assert_eq!(ask(version(2, 5), 1 << 59, None).unwrap_err(), NO_DATA);
    for msg_or_dgram in [1, 2] {
        let mut hints = Hints::new(0);
        hints.ep.ep_type = msg_or_dgram;
        assert_eq!(hints.ask().unwrap_err(), NO_DATA);
    }
}

/// `fi_getinfo` with node and service.
fn ask_by_name(node: Option<&CStr>, service: Option<&CStr>, flags: u64) -> Result<Found, c_int> {
    let provider = inner(crate::fi_prov_ini()).expect("the provider is there");
    let mut found = null_mut();
    let [node, service] = [node, service].map(|name| name.map_or(null(), CStr::as_ptr));
    match (provider.getinfo)(version(2, 5), node, service, flags, None, Out::from(&mut found)) {
        0 => Ok(Found(found)),
        error => Err(error),
    }
}

impl Found {
    fn source(&self) -> Option<&[u8; ADDRESS_BYTES]> {
        inner(self.info().src_addr.cast()).filter(|_| self.info().src_addrlen == ADDRESS_BYTES)
    }
    fn destination(&self) -> Option<&[u8; ADDRESS_BYTES]> {
        inner(self.info().dest_addr.cast()).filter(|_| self.info().dest_addrlen == ADDRESS_BYTES)
    }
}

#[test]
fn every_answer_has_a_source_address() {
    let found = ask(version(2, 5), 0, None).expect("an answer");
    assert_eq!((found.source(), found.destination()), (Some(&[0; ADDRESS_BYTES]), None));
    let service = Some(c"7471");
    let nodes = [Some(c"localhost"), None, Some(c"127.0.0.1")];
    for (node, service) in nodes.into_iter().zip([None, service, service]) {
        let found = ask_by_name(node, service, flags::SOURCE).expect("an answer");
        assert_eq!(found.source(), Some(&[0; ADDRESS_BYTES]), "{node:?} {service:?}");
    }
}

#[test]
fn node_and_service_of_a_destination_are_rejected() {
    let (node, service) = (Some(c"localhost"), Some(c"7471"));
    for (node, service) in [(node, None), (None, service), (node, service)] {
        assert_eq!(ask_by_name(node, service, 0).unwrap_err(), NO_DATA);
    }
}

#[test]
fn a_source_on_another_host_is_rejected() {
    let another = c"192.0.2.1"; // for documentation (RFC 5737), so no host has it
    assert_eq!(ask_by_name(Some(another), None, flags::SOURCE).unwrap_err(), NO_DATA);
    let numeric = flags::SOURCE | flags::NUMERIC_HOST;
    assert_eq!(ask_by_name(Some(another), None, numeric).unwrap_err(), NO_DATA);
    assert_eq!(ask_by_name(Some(c"localhost"), None, numeric).unwrap_err(), NO_DATA);
    assert!(ask_by_name(Some(c"127.0.0.1"), None, numeric).is_ok());
    assert_eq!(ask_by_name(None, None, flags::SOURCE).unwrap_err(), NO_DATA);
}

#[test]
fn addresses_in_the_hints_are_returned_or_rejected() {
    let (mut any, mut other) = ([0_u8; ADDRESS_BYTES], [7_u8; ADDRESS_BYTES]);
    let mut hints = Hints::new(0);
    (hints.info.src_addr, hints.info.src_addrlen) = (any.as_mut_ptr().cast(), ADDRESS_BYTES);
    (hints.info.dest_addr, hints.info.dest_addrlen) = (other.as_mut_ptr().cast(), ADDRESS_BYTES);
    let found = hints.ask().expect("an answer");
    assert_eq!((found.source(), found.destination()), (Some(&any), Some(&other)));
    hints.info.dest_addrlen = 16;
    assert_eq!(hints.ask().unwrap_err(), NO_DATA);
    hints.info.dest_addrlen = ADDRESS_BYTES;
    hints.info.src_addr = other.as_mut_ptr().cast();
    assert_eq!(hints.ask().unwrap_err(), NO_DATA, "an endpoint cannot choose its address");
}

#[test]
fn open_mpi_hints_match_after_device_memory_is_rejected() {
    let caps = caps::MSG | caps::TAGGED | caps::LOCAL_COMM | caps::REMOTE_COMM | caps::DIRECTED_RECV;
    let mut hints = Hints::new(caps | caps::HMEM);
    hints.domain.mr_mode = 1 << 10 | 1 << 5;
    assert_eq!(hints.ask().unwrap_err(), NO_DATA);

    let mut hints = Hints::new(caps);
    hints.info.mode = 1 << 59 | 1 << 52;
    (hints.tx.op_flags, hints.rx.op_flags) = (flags::COMPLETION, flags::COMPLETION);
    (hints.tx.msg_order, hints.rx.msg_order) = (1 << 8, 1 << 8);
    hints.ep.ep_type = ep_type::RDM;
    hints.domain.threading = threading::SAFE;
    hints.domain.resource_mgmt = resource_mgmt::ENABLED;
    hints.domain.av_type = 1;
    hints.domain.mr_mode = 1 << 5;
    hints.domain.cq_data_size = 4;
    let found = hints.ask().expect("an answer");
    assert_eq!(found.info().caps & caps, caps);
    assert_eq!(found.info().caps & (caps::RMA | caps::WRITE | caps::SOURCE), 0);
    assert_eq!((found.domain().av_type, found.domain().mr_mode), (1, 0));
    assert_eq!(inner(found.info().ep_attr).map(|ep| ep.mem_tag_format >> 63), Some(1));
}

#[test]
fn mpich_hints_get_their_threading_and_no_default_level_for_messages() {
    let mut hints = Hints::new(CAPS);
    hints.info.mode = 0xF << 56;
    hints.tx.op_flags = flags::COMPLETION | flags::DELIVERY_COMPLETE;
    hints.tx.msg_order = 1 << 8 | 0xF << 36;
    hints.rx.op_flags = flags::COMPLETION;
    hints.ep.mem_tag_format = 0x00c0_0000_7fff_ffff;
    hints.domain.threading = threading::DOMAIN;
    hints.domain.control_progress = progress::MANUAL;
    hints.domain.data_progress = progress::MANUAL;
    hints.domain.av_type = av_type::TABLE;
    hints.domain.mr_mode = 1 << 9;
    let found = hints.ask().expect("an answer");
    assert_eq!(found.info().caps, CAPS);
    assert_eq!(found.domain().threading, threading::DOMAIN);
    assert_eq!(found.tx().op_flags, flags::COMPLETION);
    assert_eq!(found.tx().msg_order & hints.tx.msg_order, hints.tx.msg_order);
}

#[test]
fn a_default_level_is_for_endpoints_that_only_have_messages() {
    for level in [flags::TRANSMIT_COMPLETE, flags::DELIVERY_COMPLETE] {
        for (caps, granted) in [(caps::MSG, level), (caps::MSG | caps::RMA, 0), (0, 0)] {
            let mut hints = Hints::new(caps);
            hints.tx.op_flags = flags::COMPLETION | level;
            let found = hints.ask().expect("an answer");
            assert_eq!(found.tx().op_flags, flags::COMPLETION | granted, "{caps:x} {level:x}");
        }
    }
    // The weakest and the strongest level depend on no memory of the receiver.
    let mut hints = Hints::new(CAPS);
    hints.tx.op_flags = flags::INJECT_COMPLETE | flags::MATCH_COMPLETE;
    assert_eq!(hints.ask().expect("an answer").tx().op_flags, hints.tx.op_flags);
}

#[test]
fn hints_for_one_direction_get_one_direction() {
    let found = Hints::new(caps::TAGGED | caps::SEND).ask().expect("an answer");
    assert_eq!(found.info().caps & (caps::SEND | caps::RECV), caps::SEND);
    assert_eq!(found.tx().caps & (caps::RECV | caps::MULTI_RECV | caps::DIRECTED_RECV), 0);
    assert_eq!(found.rx().caps & caps::SEND, 0);
}

#[test]
fn progress_is_manual_unless_the_program_asks() {
    let progress = |control, data| {
        let mut hints = Hints::new(caps::TAGGED);
        (hints.domain.control_progress, hints.domain.data_progress) = (control, data);
        let found = hints.ask().expect("an answer");
        (found.domain().control_progress, found.domain().data_progress)
    };
    use progress::{AUTO, CONTROL_UNIFIED, MANUAL, UNSPEC};
    assert_eq!(progress(UNSPEC, UNSPEC), (MANUAL, MANUAL));
    assert_eq!(progress(CONTROL_UNIFIED, MANUAL), (CONTROL_UNIFIED, MANUAL));
    assert_eq!(progress(AUTO, UNSPEC), (AUTO, MANUAL));
    assert_eq!(progress(AUTO, AUTO), (AUTO, AUTO));
    assert_eq!(progress(MANUAL, AUTO), (MANUAL, AUTO));
    let without = ask(version(2, 5), 0, None).expect("an answer");
    assert_eq!((without.domain().control_progress, without.domain().data_progress), (MANUAL, MANUAL));
}

#[test]
fn unsupported_hints_are_rejected() {
    type Change = fn(&mut Hints);
    let changes: &[Change] = &[
        |hints| hints.info.caps |= 1 << 5, // multicast
        |hints| hints.info.addr_format = 2,
        |hints| hints.tx.inject_size = INJECT_BYTES + 1,
        |hints| hints.tx.iov_limit = IOV_LIMIT + 1,
        |hints| hints.tx.op_flags = 1 << 30, // commit complete
        |hints| hints.tx.msg_order = 1,
        |hints| hints.tx.comp_order = 1,
        |hints| hints.rx.total_buffered_recv = 1,
        |hints| hints.ep.max_order_raw_size = 8,
        |hints| hints.ep.tx_ctx_cnt = usize::MAX,
        |hints| hints.domain.cq_data_size = 9,
        |hints| hints.domain.mr_mode = mr_mode::BASIC,
        |hints| hints.domain.threading = 6,
        |hints| hints.domain.resource_mgmt = 3,
        |hints| hints.domain.av_type = 3,
        |hints| hints.domain.data_progress = 3,
        |hints| hints.domain.cq_cnt = MAX_OBJECTS + 1,
        |hints| hints.domain.ep_cnt = MAX_OBJECTS + 1,
        |hints| hints.domain.tx_ctx_cnt = MAX_OBJECTS + 1,
        |hints| hints.domain.rx_ctx_cnt = MAX_OBJECTS + 1,
        |hints| hints.domain.max_ep_tx_ctx = 2,
        |hints| hints.domain.max_ep_rx_ctx = 2,
        |hints| hints.domain.max_err_data = 1,
        |hints| hints.fabric.prov_version = version(0, 2),
        |hints| hints.domain.name = c"other".as_ptr().cast_mut(),
        |hints| hints.fabric.name = c"other".as_ptr().cast_mut(),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut hints = Hints::new(caps::TAGGED | caps::RMA);
        assert!(hints.ask().is_ok());
        change(&mut hints);
        assert_eq!(hints.ask().unwrap_err(), NO_DATA, "change {number}");
    }
}

#[test]
fn an_answer_has_all_requested_capabilities() {
    let bits: Vec<u64> = (0..64).map(|bit| 1 << bit).filter(|bit| CAPS & bit != 0).collect();
    for number in 0..1_u64 << bits.len() {
        let asked =
            bits.iter().enumerate().fold(0, |asked, (place, bit)| asked | (bit * (number >> place & 1)));
        let mut answer = default_answer(version(2, 5));
        answer.fit(&Hints::new(asked).info).expect("the hints fit");
        assert_eq!(answer.info.caps & asked, asked);
        assert_eq!((answer.tx.caps | answer.rx.caps) & !answer.info.caps, 0, "{asked:#x}");
    }
}

/// Before 1.5, registration modes were not bits.
#[test]
fn programs_of_old_versions_get_scalable_registration() {
    for asked in [0, mr_mode::SCALABLE] {
        let mut answer = default_answer(version(1, 4));
        let mut hints = Hints::new(caps::RMA);
        hints.domain.mr_mode = asked;
        answer.fit_domain(&hints.domain).expect("the hints fit");
        assert_eq!(answer.domain.mr_mode, mr_mode::SCALABLE);
    }
}

#[test]
fn requested_amounts_are_returned() {
    let mut hints = Hints::new(caps::TAGGED);
    (hints.tx.size, hints.rx.size, hints.tx.inject_size) = (100, 200, 64);
    let found = hints.ask().expect("an answer");
    assert_eq!((found.tx().size, found.rx().size, found.tx().inject_size), (100, 200, 64));
}

#[test]
fn an_open_domain_of_another_provider_is_rejected() {
    let mut foreign = Fid { fclass: class::DOMAIN, context: 0, ops: std::ptr::null() };
    let mut hints = Hints::new(caps::TAGGED);
    hints.domain.domain = (&raw mut foreign).cast();
    assert_eq!(hints.ask().unwrap_err(), NO_DATA);
}

#[test]
fn a_mismatch_names_the_field_the_request_and_what_is_allowed() {
    let text = |result: Result<(), Mismatch>| result.expect_err("a mismatch").to_string();
    let start = "the program's hints exclude weir: tx_attr->";
    let size = text(at_most("tx_attr->inject_size", 4097, 4096));
    assert_eq!(size, format!("{start}inject_size is 0x1001; allowed: at most 0x1000"));
    let order = text(bits_within("tx_attr->msg_order", 5, 6));
    assert_eq!(order, format!("{start}msg_order is 0x5; allowed: bits of 0x6"));
    let protocol = text(equal("ep_attr->protocol", 7, 9));
    assert!(protocol.ends_with("ep_attr->protocol is 0x7; allowed: 0x9, or 0 for any"), "{protocol}");
    let mut answer = default_answer(version(2, 5));
    let name = FiDomainAttr { name: c"other".as_ptr().cast_mut(), ..zeroed() };
    let name = text(answer.fit_domain(&name));
    assert!(name.ends_with("domain_attr->name is of another provider; allowed: weir"), "{name}");
}
