//! Devices are opened once, with all interfaces that are to be there, and again together when one
//! of them finds that the device is gone. Hands of an interface go to the workers after its own.

use super::{REOPEN_EVERY, StartError};
use crate::config::InterfaceSettings;
use crate::device::{self, Opened};
use crate::interface::mover::DeviceError;
use crate::interface::{Hand, Interface};
use crate::port::{Place, SharedPort};
use pollux_control::interface::Worker;
use pollux_verbs::VerbsError;
use pollux_verbs::time::Time;
use pollux_wire::keys::PKey;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// An interface as the configuration names it.
pub(super) struct Named {
    pub(super) settings: InterfaceSettings,
    /// The interface, or why there is none.
    pub(super) interface: Result<Interface, StartError>,
    /// When a device that is gone is looked for again.
    retry_at: Time,
    /// What it was said to be last.
    pub(super) said: String,
}

/// Hands on their way to a worker, at most: its owner is slow, or keeps no house any more.
const HANDS_MAX: usize = 256;

/// A hand, and the name of its interface.
pub(super) type NamedHand = (String, Hand);

/// One worker's way to all of a node's, itself counted.
pub(super) struct Colleagues {
    own: usize,
    all: Vec<SyncSender<NamedHand>>,
}

/// The ways of so many workers to each other, and where hands arrive.
pub(super) fn colleagues(count: usize) -> Vec<(Colleagues, Receiver<NamedHand>)> {
    let (all, arrivals): (Vec<_>, Vec<_>) = (0..count).map(|_| sync_channel(HANDS_MAX)).unzip();
    let of = |(own, arrivals)| (Colleagues { own, all: all.clone() }, arrivals);
    arrivals.into_iter().enumerate().map(of).collect()
}

impl Colleagues {
    /// The number, among the node's, of one of the workers of an interface of this one's.
    pub(super) fn number(&self, worker: Worker) -> usize {
        (self.own + usize::from(worker.0)) % self.all.len()
    }

    /// Gives each hand to its worker. One that finds no room goes, and its interface fails.
    fn hand_out(&self, name: &str, hands: Vec<Hand>) {
        for hand in hands {
            let _ = self.all[self.number(hand.worker())].try_send((name.into(), hand));
        }
    }
}

/// Opens all that are to be.
pub(super) fn open_all(
    now: Time,
    settings: BTreeMap<String, InterfaceSettings>,
    colleagues: &Colleagues,
) -> Result<BTreeMap<String, Named>, StartError> {
    let mut all = BTreeMap::new();
    for (name, settings) in settings {
        let interface = Err(StartError::Empty);
        let named = Named { settings, interface, retry_at: now, said: String::new() };
        all.insert(name, named);
    }
    reopen(now, &mut all, colleagues);
    let failed = all.iter().find(|(_, named)| named.interface.is_err());
    let failed = failed.map(|(name, _)| name.clone()).and_then(|name| all.remove(&name));
    match failed.map(|named| named.interface) {
        Some(Err(error)) => Err(error),
        _ => Ok(all),
    }
}

/// Opens the devices anew that are gone, if it is time to; says whether one was there.
pub(super) fn reopen(
    now: Time,
    all: &mut BTreeMap<String, Named>,
    colleagues: &Colleagues,
) -> bool {
    let is_due = |named: &&Named| named.interface.is_err() && named.retry_at <= now;
    let due: BTreeSet<_> = all.values().filter(is_due).map(Named::device).collect();
    let mut is_there = false;
    for device in due {
        let running = all.values().filter(|named| named.settings.device == device);
        let running = running.filter_map(|named| named.interface.as_ref().ok());
        // Hands have the device for themselves, and nobody else gets it before they are gone.
        let is_free = running.fold(true, |all, interface| interface.end_hands() & all);
        if !is_free {
            continue;
        }
        let at_device = all.iter_mut().filter(|(_, named)| named.settings.device == device);
        is_there |= open(now, &device, &mut at_device.collect::<Vec<_>>(), colleagues);
    }
    is_there
}

/// Opens a device, and all interfaces there. What is left of them goes first, since a port is
/// opened once.
fn open(
    now: Time,
    device: &str,
    all: &mut [(&String, &mut Named)],
    colleagues: &Colleagues,
) -> bool {
    for (name, named) in all.iter_mut() {
        named.interface = Err(StartError::Beside((*name).clone(), device.into()));
        named.retry_at = now + REOPEN_EVERY;
    }
    let Some((first, _)) = all.first() else { return false };
    let failed = |error| StartError::Device((*first).clone(), DeviceError::Verbs(error));
    let p_keys: Vec<_> = all.iter().map(|(_, named)| named.settings.pkey).collect();
    let places = device::open(device)
        .map_err(|error| StartError::Open((*first).clone(), error))
        .and_then(|opened| places(opened, &p_keys).map_err(failed));
    match places {
        Err(error) => all[0].1.interface = Err(error),
        Ok(places) => {
            for ((name, named), place) in all.iter_mut().zip(places) {
                let opened = interface(now, name, place, &named.settings);
                named.interface = opened.map(|(interface, hands)| {
                    colleagues.hand_out(name, hands);
                    interface
                });
            }
        }
    }
    all.iter().all(|(_, named)| named.interface.is_ok())
}

/// A place for the interface of each partition.
fn places(opened: Opened, p_keys: &[PKey]) -> Result<Vec<Place>, VerbsError> {
    if let [_alone] = p_keys {
        return Ok(vec![opened.into()]);
    }
    let port = SharedPort::new(opened)?;
    Ok(p_keys.iter().map(|p_key| port.seat(*p_key).into()).collect())
}

fn interface(
    now: Time,
    name: &str,
    place: Place,
    settings: &InterfaceSettings,
) -> Result<(Interface, Vec<Hand>), StartError> {
    let interface = Interface::with_hands(now, place, settings, super::seed());
    interface.map_err(|error| StartError::Device(name.into(), error))
}

impl Named {
    pub(super) fn device(&self) -> String {
        self.settings.device.clone()
    }

    /// When there is something to do though nothing comes.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match &self.interface {
            Ok(interface) => interface.poll_timeout(),
            Err(_) => Some(self.retry_at),
        }
    }

    pub(super) fn step(&mut self, now: Time, name: &str) -> bool {
        let Ok(interface) = &mut self.interface else { return false };
        let busy = interface.step(now);
        if let Some(error) = interface.failed() {
            let error = DeviceError::Verbs(error.clone());
            self.interface = Err(StartError::Device(name.into(), error));
            self.retry_at = now + REOPEN_EVERY;
        }
        busy
    }

    pub(super) fn state(&self) -> String {
        match &self.interface {
            Err(error) => format!("failed: {error}"),
            Ok(interface) => {
                let row = interface.control().row();
                format!("{}: {}", row.state, row.why)
            }
        }
    }
}
