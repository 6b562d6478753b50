//! `fi_getinfo`: offers the capabilities of the provider, if they satisfy a program's hints, and if node and service
//! can be answered (`info/addresses.rs`).
//!
//! There is one answer: a reliable unconnected endpoint (`FI_EP_RDM`). Hints are compared with it much as libfabric's
//! `ofi_check_info` does. Fields that the program may choose are returned as requested, as `ofi_alter_info` does. An
//! exception: endpoints with remote accesses get no default of transmit-complete or delivery-complete for sends.
//! `FI_LOG_LEVEL=info` shows a mismatch. Utility providers of the core get no answer.

mod addresses;
mod memory;
mod mismatch;

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use addresses::Addresses;
use memory::{c_string, copy, empty_info, fill};
use mismatch::{Allowed, Mismatch, at_most, bits_within, equal};
use weir_link::ADDRESS_BYTES;

use crate::errno::Error;
use crate::ffi::*;
use crate::limits::{
    CAPS, DEFAULT_CAPS, DEFAULT_CAPS_OVER_LAYERS, DELIVERED_FLAGS, DOMAIN_CAPS, IOV_LIMIT, MESSAGE_MODIFIERS,
    MODIFIERS, PRIMARY, REMOTE_MODIFIERS, RMA_IOV_LIMIT, RX_CAPS, RX_FLAGS, SECONDARY, TX_CAPS, TX_FLAGS,
};
use crate::version::VERSION;
use crate::{core_provider, log, settings};

/// Messages of a pair stay in order. So do its atomic operations: they take the path of messages.
const TX_ORDER: u64 = order::SEND_AFTER_SEND | order::ATOMIC;
const RX_ORDER: u64 = TX_ORDER;
/// Longest atomic operation that keeps these orders. Unit: bytes.
const MAX_ORDER_BYTES: usize = weir_proto::offload::atomics::MAX_ATOMIC_BYTES as usize;

/// Longest message that can be injected. The program has its buffer back at once, so a message that must wait is
/// copied. MPICH and Open MPI inject everything up to this limit. Unit: bytes.
pub const INJECT_BYTES: usize = 4096;
/// The limit with more ranks than cores, unless the program requests more. A sender without credits copies a longer
/// injected message twice. This fills the caches while its receiver needs the core. A send that waits copies only
/// once (docs/explanation/performance.md). Unit: bytes.
pub const OVERSUBSCRIBED_INJECT_BYTES: usize = 256;

/// Longest injected message if the program requests no limit. Unit: bytes.
fn inject_bytes() -> usize {
    if weir_engine::oversubscription::is_oversubscribed() {
        OVERSUBSCRIBED_INJECT_BYTES
    } else {
        INJECT_BYTES
    }
}

/// Outstanding operations that are reported to programs, which use it as a queue size.
const QUEUE_SIZE: usize = 1024;
/// Objects of each kind that are reported to programs.
const MAX_OBJECTS: usize = 1024;
/// Length of remote completion data and of keys. Unit: bytes.
const DATA_BYTES: usize = 8;
const MAX_MESSAGE_BYTES: usize = i64::MAX as usize;
/// All 64 bits of a tag belong to the program. The pattern means fields of one bit each, from the top.
const TAG_FORMAT: u64 = 0xAAAA_AAAA_AAAA_AAAA;
/// A private address format (top bit), because other providers cannot read the addresses.
pub const ADDRESS_FORMAT: u32 = 0x8000_7765;
/// A private protocol number.
const PROTOCOL: u32 = 0x8000_7765;

const FABRIC_NAME: &CStr = c"weir";
const DOMAIN_NAME: &CStr = c"weir";

/// Hints or an answer: `fi_info` with its substructures, as values.
#[derive(Clone, Copy)]
struct Answer {
    info: FiInfo,
    tx: FiTxAttr,
    rx: FiRxAttr,
    ep: FiEpAttr,
    domain: FiDomainAttr,
    fabric: FiFabricAttr,
}

/// The answer to a program of `api_version` without hints.
fn default_answer(api_version: u32) -> Answer {
    Answer {
        info: FiInfo {
            next: null_mut(),
            caps: DEFAULT_CAPS,
            mode: 0,
            addr_format: ADDRESS_FORMAT,
            src_addrlen: 0,
            dest_addrlen: 0,
            src_addr: null_mut(),
            dest_addr: null_mut(),
            handle: null_mut(),
            tx_attr: null_mut(),
            rx_attr: null_mut(),
            ep_attr: null_mut(),
            domain_attr: null_mut(),
            fabric_attr: null_mut(),
            nic: null_mut(),
        },
        tx: FiTxAttr {
            caps: DEFAULT_CAPS & TX_CAPS,
            mode: 0,
            op_flags: 0,
            msg_order: TX_ORDER,
            comp_order: 0,
            inject_size: inject_bytes(),
            size: QUEUE_SIZE,
            iov_limit: IOV_LIMIT,
            rma_iov_limit: RMA_IOV_LIMIT,
            tclass: 0,
        },
        rx: FiRxAttr {
            caps: DEFAULT_CAPS & RX_CAPS,
            mode: 0,
            op_flags: 0,
            msg_order: RX_ORDER,
            comp_order: 0,
            total_buffered_recv: 0,
            size: QUEUE_SIZE,
            iov_limit: IOV_LIMIT,
        },
        ep: FiEpAttr {
            ep_type: ep_type::RDM,
            protocol: PROTOCOL,
            protocol_version: 1,
            max_msg_size: MAX_MESSAGE_BYTES,
            msg_prefix_size: 0,
            max_order_raw_size: 0,
            max_order_war_size: 0,
            max_order_waw_size: 0,
            mem_tag_format: TAG_FORMAT,
            tx_ctx_cnt: 1,
            rx_ctx_cnt: 1,
            auth_key_size: 0,
            auth_key: null_mut(),
        },
        domain: FiDomainAttr {
            domain: null_mut(),
            name: null_mut(),
            threading: threading::SAFE,
            control_progress: progress::MANUAL,
            data_progress: progress::MANUAL,
            resource_mgmt: resource_mgmt::ENABLED,
            av_type: av_type::UNSPEC,
            // Before 1.5, 0 was no mode.
            mr_mode: if api_version < version(1, 5) { mr_mode::SCALABLE } else { 0 },
            mr_key_size: DATA_BYTES,
            cq_data_size: DATA_BYTES,
            cq_cnt: MAX_OBJECTS,
            ep_cnt: MAX_OBJECTS,
            tx_ctx_cnt: MAX_OBJECTS,
            rx_ctx_cnt: MAX_OBJECTS,
            max_ep_tx_ctx: 1,
            max_ep_rx_ctx: 1,
            max_ep_stx_ctx: 0,
            max_ep_srx_ctx: 0,
            cntr_cnt: MAX_OBJECTS,
            mr_iov_limit: IOV_LIMIT,
            caps: DOMAIN_CAPS,
            mode: 0,
            auth_key: null_mut(),
            auth_key_size: 0,
            max_err_data: 0,
            mr_cnt: 65536,
            tclass: 0,
        },
        fabric: FiFabricAttr {
            fabric: null_mut(),
            name: null_mut(),
            prov_name: null_mut(), // the core sets it, and appends to a name that it finds
            prov_version: 0,
            api_version: 0,
        },
    }
}

/// Replaces `ours` by the requested value, if there is one.
fn apply_hint<T: Copy + Default + PartialEq>(ours: &mut T, asked: T) {
    if asked != T::default() {
        *ours = asked;
    }
}

impl Answer {
    /// Fits the answer to the hints.
    fn fit(&mut self, hints: &FiInfo) -> Result<(), Mismatch> {
        bits_within("caps", hints.caps, CAPS)?;
        equal("addr_format", hints.addr_format.into(), ADDRESS_FORMAT.into())?;
        self.fit_caps(hints.caps);
        self.info.handle = hints.handle;
        if let Some(asked) = inner(hints.ep_attr) {
            self.fit_endpoint(asked)?;
        }
        if let Some(asked) = inner(hints.tx_attr) {
            self.fit_transmit(asked)?;
        }
        if let Some(asked) = inner(hints.rx_attr) {
            self.fit_receive(asked)?;
        }
        if let Some(asked) = inner(hints.domain_attr) {
            self.fit_domain(asked)?;
        }
        if let Some(asked) = inner(hints.fabric_attr) {
            self.fit_fabric(asked)?;
        }
        Ok(())
    }

    /// Capabilities: the requested primary ones with their directions, and the secondary ones.
    fn fit_caps(&mut self, asked: u64) {
        let mut caps = DEFAULT_CAPS;
        if asked != 0 {
            caps = asked & (PRIMARY | MODIFIERS) | SECONDARY;
            if asked & (caps::MSG | caps::TAGGED) != 0 && asked & MESSAGE_MODIFIERS == 0 {
                caps |= MESSAGE_MODIFIERS;
            }
            if asked & (caps::RMA | caps::ATOMIC) != 0 && asked & REMOTE_MODIFIERS == 0 {
                caps |= REMOTE_MODIFIERS;
            }
            if asked & caps::SOURCE == 0 {
                caps &= !caps::SOURCE;
            }
        }
        self.info.caps = caps;
        self.tx.caps = caps & TX_CAPS;
        self.rx.caps = caps & RX_CAPS;
        if caps & caps::ATOMIC != 0 {
            // Up to here atomics have the orders of `TX_ORDER`, which is all that they take.
            let ep = &mut self.ep;
            let sizes = [&mut ep.max_order_raw_size, &mut ep.max_order_war_size, &mut ep.max_order_waw_size];
            sizes.into_iter().for_each(|size| *size = MAX_ORDER_BYTES);
        }
    }

    fn fit_endpoint(&mut self, asked: &FiEpAttr) -> Result<(), Mismatch> {
        equal("ep_attr->type", asked.ep_type as u64, ep_type::RDM as u64)?;
        equal("ep_attr->protocol", asked.protocol.into(), PROTOCOL.into())?;
        at_most("ep_attr->protocol_version", asked.protocol_version as usize, 1)?;
        at_most("ep_attr->max_msg_size", asked.max_msg_size, MAX_MESSAGE_BYTES)?;
        at_most("ep_attr->msg_prefix_size", asked.msg_prefix_size, 0)?;
        let order_bytes = self.ep.max_order_raw_size; // `fit_caps` has set it, and the others like it
        at_most("ep_attr->max_order_raw_size", asked.max_order_raw_size, order_bytes)?;
        at_most("ep_attr->max_order_war_size", asked.max_order_war_size, order_bytes)?;
        at_most("ep_attr->max_order_waw_size", asked.max_order_waw_size, order_bytes)?;
        at_most("ep_attr->tx_ctx_cnt", asked.tx_ctx_cnt, 1)?;
        at_most("ep_attr->rx_ctx_cnt", asked.rx_ctx_cnt, 1)?;
        at_most("ep_attr->auth_key_size", asked.auth_key_size, 0)
    }

    fn fit_transmit(&mut self, asked: &FiTxAttr) -> Result<(), Mismatch> {
        bits_within("tx_attr->caps", asked.caps, TX_CAPS)?;
        bits_within("tx_attr->op_flags", asked.op_flags, TX_FLAGS)?;
        bits_within("tx_attr->msg_order", asked.msg_order, TX_ORDER)?;
        bits_within("tx_attr->comp_order", asked.comp_order, 0)?;
        at_most("tx_attr->inject_size", asked.inject_size, INJECT_BYTES)?;
        at_most("tx_attr->size", asked.size, QUEUE_SIZE)?;
        at_most("tx_attr->iov_limit", asked.iov_limit, IOV_LIMIT)?;
        at_most("tx_attr->rma_iov_limit", asked.rma_iov_limit, RMA_IOV_LIMIT)?;
        if asked.caps != 0 {
            self.tx.caps &= asked.caps | DOMAIN_CAPS;
        }
        self.tx.op_flags = self.default_levels(asked.op_flags);
        apply_hint(&mut self.tx.inject_size, asked.inject_size);
        apply_hint(&mut self.tx.size, asked.size);
        apply_hint(&mut self.tx.iov_limit, asked.iov_limit);
        apply_hint(&mut self.tx.rma_iov_limit, asked.rma_iov_limit);
        Ok(())
    }

    /// The default flags of sends that the program gets.
    ///
    /// A receiver over its budget leaves messages with their senders. Then a delivered send completes when a receive
    /// takes the message, and a program that relies on buffering hangs. MPICH is such a program. It asks for
    /// delivery-complete by default, and means its remote writes. These always have that level. So an endpoint for
    /// messages and remote accesses has no such default, and a call can still ask for it.
    fn default_levels(&self, asked: u64) -> u64 {
        if self.info.caps & caps::RMA == 0 || asked & DELIVERED_FLAGS == 0 {
            return asked;
        }
        log::info(|| {
            String::from(
                "tx_attr->op_flags: no default of FI_TRANSMIT_COMPLETE or FI_DELIVERY_COMPLETE for messages of endpoints \
                 with FI_RMA, whose remote accesses have it in any case; for messages give the flag in the call, or to \
                 fi_endpoint",
            )
        });
        asked & !DELIVERED_FLAGS
    }

    fn fit_receive(&mut self, asked: &FiRxAttr) -> Result<(), Mismatch> {
        bits_within("rx_attr->caps", asked.caps, RX_CAPS)?;
        bits_within("rx_attr->op_flags", asked.op_flags, RX_FLAGS)?;
        bits_within("rx_attr->msg_order", asked.msg_order, RX_ORDER)?;
        bits_within("rx_attr->comp_order", asked.comp_order, 0)?;
        at_most("rx_attr->total_buffered_recv", asked.total_buffered_recv, 0)?;
        at_most("rx_attr->size", asked.size, QUEUE_SIZE)?;
        at_most("rx_attr->iov_limit", asked.iov_limit, IOV_LIMIT)?;
        if asked.caps != 0 {
            self.rx.caps &= asked.caps | SECONDARY;
        }
        self.rx.op_flags = asked.op_flags;
        apply_hint(&mut self.rx.size, asked.size);
        apply_hint(&mut self.rx.iov_limit, asked.iov_limit);
        Ok(())
    }

    fn fit_domain(&mut self, asked: &FiDomainAttr) -> Result<(), Mismatch> {
        if let Some(name) = inner_string(asked.name)
            && !name.to_bytes().eq_ignore_ascii_case(DOMAIN_NAME.to_bytes())
        {
            return Err(Mismatch { field: "domain_attr->name", asked: None, allowed: Allowed::Only("weir") });
        }
        let open = AnyObject::from(asked.domain.cast_const().cast::<Fid>());
        if !asked.domain.is_null() && open.of::<crate::domain::DomainHandle>().is_none() {
            return Err(Mismatch {
                field: "domain_attr->domain",
                asked: None,
                allowed: Allowed::Only("an open domain of weir"),
            });
        }
        // These programs expect virtual addresses and keys of the provider, as before these were separate bits.
        if asked.mr_mode == mr_mode::BASIC {
            let allowed = Allowed::Only("any mode except FI_MR_BASIC");
            return Err(Mismatch {
                field: "domain_attr->mr_mode",
                asked: Some(asked.mr_mode as u64),
                allowed,
            });
        }
        for (field, asked, last) in [
            ("domain_attr->threading", asked.threading, threading::LAST),
            ("domain_attr->control_progress", asked.control_progress, progress::CONTROL_UNIFIED),
            ("domain_attr->data_progress", asked.data_progress, progress::MANUAL),
            ("domain_attr->resource_mgmt", asked.resource_mgmt, resource_mgmt::ENABLED),
            ("domain_attr->av_type", asked.av_type, av_type::TABLE),
        ] {
            at_most(field, asked as u32 as usize, last as usize)?;
        }
        at_most("domain_attr->mr_key_size", asked.mr_key_size, DATA_BYTES)?;
        at_most("domain_attr->cq_data_size", asked.cq_data_size, DATA_BYTES)?;
        at_most("domain_attr->cq_cnt", asked.cq_cnt, MAX_OBJECTS)?;
        at_most("domain_attr->ep_cnt", asked.ep_cnt, MAX_OBJECTS)?;
        at_most("domain_attr->tx_ctx_cnt", asked.tx_ctx_cnt, MAX_OBJECTS)?;
        at_most("domain_attr->rx_ctx_cnt", asked.rx_ctx_cnt, MAX_OBJECTS)?;
        at_most("domain_attr->max_ep_tx_ctx", asked.max_ep_tx_ctx, 1)?;
        at_most("domain_attr->max_ep_rx_ctx", asked.max_ep_rx_ctx, 1)?;
        at_most("domain_attr->max_ep_stx_ctx", asked.max_ep_stx_ctx, 0)?;
        at_most("domain_attr->max_ep_srx_ctx", asked.max_ep_srx_ctx, 0)?;
        at_most("domain_attr->cntr_cnt", asked.cntr_cnt, MAX_OBJECTS)?;
        at_most("domain_attr->mr_iov_limit", asked.mr_iov_limit, IOV_LIMIT)?;
        at_most("domain_attr->mr_cnt", asked.mr_cnt, self.domain.mr_cnt)?;
        at_most("domain_attr->auth_key_size", asked.auth_key_size, 0)?;
        at_most("domain_attr->max_err_data", asked.max_err_data, 0)?;
        bits_within("domain_attr->caps", asked.caps, DOMAIN_CAPS)?;
        self.domain.domain = asked.domain;
        apply_hint(&mut self.domain.threading, asked.threading);
        self.fit_progress(asked);
        apply_hint(&mut self.domain.resource_mgmt, asked.resource_mgmt);
        apply_hint(&mut self.domain.av_type, asked.av_type);
        if asked.mr_mode == mr_mode::SCALABLE {
            self.domain.mr_mode = mr_mode::SCALABLE;
        }
        Ok(())
    }

    /// Progress is manual, unless the program asks for automatic progress of data. Automatic progress of control costs
    /// nothing, because no control operation is asynchronous.
    fn fit_progress(&mut self, asked: &FiDomainAttr) {
        apply_hint(&mut self.domain.control_progress, asked.control_progress);
        apply_hint(&mut self.domain.data_progress, asked.data_progress);
        if asked.data_progress == progress::AUTO {
            log::info(|| {
                "domain_attr->data_progress: FI_PROGRESS_AUTO, by a thread for each endpoint".to_string()
            });
        }
    }

    fn fit_fabric(&mut self, asked: &FiFabricAttr) -> Result<(), Mismatch> {
        if let Some(name) = inner_string(asked.name)
            && !name.to_bytes().eq_ignore_ascii_case(FABRIC_NAME.to_bytes())
        {
            return Err(Mismatch { field: "fabric_attr->name", asked: None, allowed: Allowed::Only("weir") });
        }
        let open = AnyObject::from(asked.fabric.cast_const().cast::<Fid>());
        if !asked.fabric.is_null() && open.of::<crate::fabric::FabricHandle>().is_none() {
            return Err(Mismatch {
                field: "fabric_attr->fabric",
                asked: None,
                allowed: Allowed::Only("an open fabric of weir"),
            });
        }
        at_most("fabric_attr->prov_version", asked.prov_version as usize, VERSION as usize)?;
        self.fabric.fabric = asked.fabric;
        Ok(())
    }

    /// Copies the answer to memory that the core frees piece by piece with `free`. `None`: no memory is left. Earlier
    /// pieces of the answer then leak, a few hundred bytes.
    fn hand_out(self, addresses: &Addresses) -> Option<*mut FiInfo> {
        let domain = FiDomainAttrFull {
            common: FiDomainAttr { name: c_string(DOMAIN_NAME)?, ..self.domain },
            max_ep_auth_key: 0,
            max_group_id: 0,
            max_cntr_value: u64::MAX,
            max_err_cntr_value: u64::MAX,
        };
        let (src_addr, src_addrlen) = (copy(&addresses.source)?, ADDRESS_BYTES);
        let (dest_addr, dest_addrlen) = match &addresses.destination {
            Some(address) => (copy(address)?, ADDRESS_BYTES),
            None => (null_mut(), 0),
        };
        let empty = empty_info();
        let of_core = inner(empty);
        let info = FiInfo {
            src_addr,
            src_addrlen,
            dest_addr,
            dest_addrlen,
            tx_attr: fill(of_core.map(|info| info.tx_attr), self.tx)?,
            rx_attr: fill(of_core.map(|info| info.rx_attr), self.rx)?,
            ep_attr: fill(of_core.map(|info| info.ep_attr), self.ep)?,
            domain_attr: fill(of_core.map(|info| info.domain_attr.cast()), domain)?.cast(),
            fabric_attr: fill(
                of_core.map(|info| info.fabric_attr),
                FiFabricAttr { name: c_string(FABRIC_NAME)?, ..self.fabric },
            )?,
            ..self.info
        };
        fill(Some(empty), info)
    }
}

/// `fi_getinfo`, called by the core.
pub extern "C" fn getinfo(
    api_version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: Option<&FiInfo>,
    mut info: Out<*mut FiInfo>,
) -> c_int {
    match find(api_version, inner_string(node), inner_string(service), flags, hints) {
        Ok(found) => {
            info.set(found);
            0
        }
        Err(error) => error.code(),
    }
}

fn find(
    api_version: u32,
    node: Option<&CStr>,
    service: Option<&CStr>,
    flags: u64,
    hints: Option<&FiInfo>,
) -> Result<*mut FiInfo, Error> {
    // A utility provider of the core asks. This provider already has everything that it could add.
    if flags & flags::CORE_PROVIDER_ONLY != 0 {
        return Err(Error::NO_DATA);
    }
    // This plug-in asks, for another provider.
    if core_provider::is_looking() {
        return Err(Error::NO_DATA);
    }
    let is_over_layers = settings::read()?.links.core_layers().is_some();
    let mut answer = default_answer(api_version);
    match hints {
        Some(hints) => answer.fit(hints).map_err(no_data)?,
        None if is_over_layers => answer.fit_caps(DEFAULT_CAPS_OVER_LAYERS),
        None => {}
    }
    let addresses = addresses::resolve(node, service, flags, hints).map_err(no_data)?;
    answer.hand_out(&addresses).ok_or(Error::NO_MEMORY)
}

/// The result of a call that weir cannot satisfy. The log says why.
fn no_data(reason: impl std::fmt::Display) -> Error {
    log::info(|| reason.to_string());
    Error::NO_DATA
}

#[cfg(test)]
mod tests;
