//! The programs of pretended hosts: a switch that costs next to nothing, and a program for the other end of a virtual pair
//! of interfaces (veth), which else takes no frames from a program. Both end with their values.

use crate::programs::{AttachError, kernel, load, number_of, start};
use aya::Ebpf;
use aya::maps::DevMap;
use aya::programs::links::FdLink;
use aya::programs::{Xdp, XdpMode};

/// The compiled programs. `None`: there was no clang when this was built.
#[cfg(kernel_programs)]
const OBJECT: Option<&[u8]> = Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/switch.bpf.o")));
/// As above.
#[cfg(not(kernel_programs))]
const OBJECT: Option<&[u8]> = None;

/// A program that lets everything pass.
#[derive(Debug)]
pub struct Pass {
    _loaded: Ebpf,
    _link: FdLink,
}

impl Pass {
    /// Attaches it.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(interface: &str) -> Result<Pass, AttachError> {
        let mut loaded = load(OBJECT, None)?;
        let link = start(&mut loaded, "weir_pass", Some(interface))?.expect("it was attached");
        Ok(Pass { _loaded: loaded, _link: link })
    }
}

/// A switch between ports.
#[derive(Debug)]
pub struct Switch {
    // Its links end with it.
    _loaded: Ebpf,
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
        start(&mut loaded, "weir_switch", None)?;
        let program = loaded.program_mut("weir_switch").expect("it was just loaded");
        let program: &mut Xdp = program.try_into().map_err(kernel("weir_switch"))?;
        for interface in interfaces {
            program.attach(interface, XdpMode::Driver).map_err(kernel("weir_switch"))?;
        }
        Ok(Switch { _loaded: loaded })
    }
}
