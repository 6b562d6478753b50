//! Closing endpoints: one that the program closes, and all that it has left open at exit.
//!
//! An endpoint that closes waits for peers, which may be endpoints of the same process. So they are polled meanwhile:
//! those of its domain while the program closes one ([`close_endpoint`]), all of the process if it has one thread, and
//! all together at exit ([`close_all`]). At exit a domain is left alone if a call of another thread in it does not end.
//! This file does not know how long an endpoint waits; the engine does.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_engine::Engine;
use weir_link::Address;
use weir_link::cores::{is_only_thread, this_thread};

use crate::errno::Error;
use crate::state::domain_state::{Domain, Mode, State, open_domains};
use crate::{log, node_endpoints};

/// Longest sleep while several endpoints are polled, because one sleeps on the doorbell of one of them. Unit: ns.
const POLL_INTERVAL_NS: u64 = 1_000_000;
/// The same while the exit handler waits for other threads.
const CALL_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The closing calls that are under way, by process and thread. A forked child inherits the entries of its parent.
static CALLS: Mutex<Vec<(u32, usize)>> = Mutex::new(Vec::new());

fn calls() -> MutexGuard<'static, Vec<(u32, usize)>> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An entry of [`CALLS`].
struct ClosingCall((u32, usize));

impl ClosingCall {
    fn begin() -> ClosingCall {
        let call = (std::process::id(), this_thread());
        calls().push(call);
        ClosingCall(call)
    }
}

impl Drop for ClosingCall {
    fn drop(&mut self) {
        let mut calls = calls();
        if let Some(place) = calls.iter().position(|call| *call == self.0) {
            calls.swap_remove(place);
        }
    }
}

/// Waits until no other thread closes an endpoint. Their waits are bounded.
fn wait_for_closing_calls() {
    let here = (std::process::id(), this_thread());
    // A signal handler may have interrupted a call of this thread, which cannot go on meanwhile.
    while calls().iter().any(|&call| call.0 == here.0 && call.1 != here.1) {
        std::thread::sleep(CALL_POLL_INTERVAL);
    }
}

/// The addresses of the open endpoints of a domain.
fn addresses(domain: &Domain) -> Vec<Address> {
    let mut state = domain.enter();
    let engines = state.endpoints.iter_mut().filter_map(|endpoint| endpoint.engine());
    engines.map(|engine| engine.address()).collect()
}

/// Closes an endpoint of `domain` that has left the domain's table. Polls the other endpoints, and holds the domain only
/// for that, so other threads can use them.
///
/// # Errors
/// [`Error::TIMED_OUT`]: the endpoint is closed, and messages of completed sends were given up. The user knows it.
pub fn close_endpoint(domain: &Arc<Domain>, mut engine: Engine) -> Result<(), Error> {
    let _call = ClosingCall::begin();
    let alone = is_only_thread();
    let mut domains = if alone { open_domains() } else { vec![Arc::clone(domain)] };
    domains.retain(|domain| !addresses(domain).is_empty());
    // Nobody can post a receive there during this call.
    let idle = alone || domain.mode == Mode::Serialised;
    let idle_peers: Vec<_> = domains.iter().filter(|_| idle).flat_map(|domain| addresses(domain)).collect();
    node_endpoints::withdraw(&engine);
    engine.begin_close();
    loop {
        let step = engine.close_step(&idle_peers);
        if step.done {
            break;
        }
        let events: usize = domains.iter().map(|domain| domain.enter().progress_all()).sum();
        match (step.events + events, domains.is_empty()) {
            (0, true) => engine.pause(),
            (0, false) => engine.wait(POLL_INTERVAL_NS),
            _ => {}
        }
    }
    if report(&mut engine) { Ok(()) } else { Err(Error::TIMED_OUT) }
}

/// Closes all `engines` of this process. None of them closes its mailbox before all are done.
fn close_together(mut engines: Vec<Engine>) {
    engines.iter().for_each(node_endpoints::withdraw);
    engines.iter_mut().for_each(Engine::begin_close);
    loop {
        let (mut events, mut waiting) = (0, None);
        for (index, engine) in engines.iter_mut().enumerate() {
            let step = engine.close_step(&[]);
            events += step.events;
            if !step.done {
                waiting = Some(index);
            }
        }
        let Some(waiting) = waiting else { break };
        match (events, engines.len()) {
            (0, 1) => engines[waiting].pause(),
            (0, _) => engines[waiting].wait(POLL_INTERVAL_NS),
            _ => {}
        }
    }
    for engine in &mut engines {
        report(engine);
    }
}

/// Time for which the exit handler waits for a call of another thread to end. Calls end within 100 ms, unless they copy
/// gigabytes.
const EXIT_WAIT: Duration = Duration::from_secs(1);

/// Closes what the program has left open, when the core is unloaded. Queued messages are still sent. Other threads may
/// still call. If such a call does not end, the endpoints of its domain stay open, and the user is told.
pub fn close_all() {
    wait_for_closing_calls();
    let mut domains = open_domains();
    domains.retain(|domain| domain.enabled_endpoints.load(Ordering::Relaxed) > 0);
    if domains.is_empty() {
        return;
    }
    let alone = is_only_thread();
    let (mut engines, mut watchers) = (Vec::new(), Vec::new());
    for domain in &domains {
        match domain.interrupt(EXIT_WAIT, alone) {
            Some(mut state) => {
                let State { endpoints, regions, .. } = &mut *state;
                for endpoint in endpoints.iter_mut() {
                    endpoint.forget_regions(regions.keys().copied());
                    watchers.extend(endpoint.waits.take_watcher());
                    engines.extend(endpoint.take_engine());
                }
            }
            None => report_open_endpoints(domain),
        }
    }
    drop(watchers); // no thread may be inside the plug-in after this; a watcher waits for its domain, which is left
    close_together(engines);
}

fn report_open_endpoints(domain: &Domain) {
    let count = domain.enabled_endpoints.load(Ordering::Relaxed);
    let endpoints = if count == 1 { "endpoint stays" } else { "endpoints stay" };
    log::report(&format!(
        "process {} exits while another thread may be inside a call of weir: {count} {endpoints} open, and messages \
         that only this process holds may be lost; before exit, close all endpoints or end the threads that use them",
        domain.process
    ));
}

/// Ends the close of an engine, and reports what it gives up. Returns whether that is nothing.
fn report(engine: &mut Engine) -> bool {
    let given_up = engine.end_close();
    if let Some(given_up) = &given_up {
        log::report(&given_up.to_string());
    }
    given_up.is_none()
}
