//! The programs of pretended hosts: a switch that costs next to nothing, and a program for the other end of a virtual pair
//! of interfaces (veth), which else takes no frames from a program. Both end with their values.

use crate::programs::{AttachError, kernel, load, number_of, start};
use aya::Ebpf;
use aya::maps::{Array, DevMap};
use aya::programs::links::FdLink;
use aya::programs::{Xdp, XdpMode};
use std::net::Ipv4Addr;

/// UDP port of frames that the least program of a host sends back to where they come from. Of `xdp/switch.bpf.c`.
pub const BACK_PORT: u16 = 7003;
/// UDP port of frames that it lets pass.
pub const PASS_PORT: u16 = 7004;
/// UDP port of frames that it drops.
pub const DROP_PORT: u16 = 7005;
/// The address of all hosts. Frames for these ports become copies.
pub const ALL: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 254);

/// The compiled programs. `None`: there was no clang when this was built.
#[cfg(kernel_programs)]
const OBJECT: Option<&[u8]> = Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/switch.bpf.o")));
/// As above.
#[cfg(not(kernel_programs))]
const OBJECT: Option<&[u8]> = None;

/// A program at the other end of a virtual pair.
#[derive(Debug)]
pub struct Pass {
    _loaded: Ebpf,
    _link: FdLink,
}

impl Pass {
    /// One that lets everything pass.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(interface: &str) -> Result<Pass, AttachError> {
        Pass::of("weir_pass", interface)
    }

    /// One that does with frames for [`BACK_PORT`] and so on the least that a program can do.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_least(interface: &str) -> Result<Pass, AttachError> {
        Pass::of("weir_end", interface)
    }

    fn of(program: &'static str, interface: &str) -> Result<Pass, AttachError> {
        let mut loaded = load(OBJECT, None)?;
        let link = start(&mut loaded, program, Some(interface))?.expect("it was attached");
        Ok(Pass { _loaded: loaded, _link: link })
    }
}

/// A switch between ports.
#[derive(Debug)]
pub struct Switch {
    // Its links end with it.
    loaded: Ebpf,
}

impl Switch {
    /// Attaches it to these ports. Frames for the address `02:77:65:69:72:N` leave by port N, counted from 1.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(interfaces: &[String]) -> Result<Switch, AttachError> {
        let mut loaded = load(OBJECT, None)?;
        let map = loaded.map_mut("ports").expect("the source in xdp/ has this map");
        let mut ports = DevMap::try_from(map).map_err(kernel("the ports of the switch"))?;
        for (port, interface) in (1..).zip(interfaces) {
            ports.set(port, number_of(interface)?, None, 0).map_err(kernel("the ports of the switch"))?;
        }
        let map = loaded.map_mut("copies").expect("the source in xdp/ has this map");
        let mut copies = DevMap::try_from(map).map_err(kernel("the ports of the switch"))?;
        for (place, interface) in (0..).zip(interfaces) {
            copies.set(place, number_of(interface)?, None, 0).map_err(kernel("the ports of the switch"))?;
        }
        start(&mut loaded, "weir_switch", None)?;
        let program = loaded.program_mut("weir_switch").expect("it was just loaded");
        let program: &mut Xdp = program.try_into().map_err(kernel("weir_switch"))?;
        for interface in interfaces {
            program.attach(interface, XdpMode::Driver).map_err(kernel("weir_switch"))?;
        }
        Ok(Switch { loaded })
    }

    /// Frames for [`ALL`] become a copy for each port: those for [`BACK_PORT`] but for their own, and the last one of `members`
    /// frames for [`PASS_PORT`].
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn copy(&mut self, members: u32) -> Result<(), AttachError> {
        let map = self.loaded.map_mut("arrivals").expect("the source in xdp/ has this map");
        let mut arrivals = Array::try_from(map).map_err(kernel("the copies of the switch"))?;
        arrivals.set(1, u64::from(members), 0).map_err(kernel("the copies of the switch"))
    }
}
