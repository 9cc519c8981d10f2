//! Devices are opened once, with all interfaces that are to be there, and again together when one
//! of them finds that the device is gone.

use super::{REOPEN_EVERY, StartError};
use crate::config::InterfaceSettings;
use crate::device;
use crate::interface::Interface;
use crate::interface::mover::DeviceError;
use crate::port::{Place, SharedPort};
use pollux_verbs::time::Time;
use std::collections::{BTreeMap, BTreeSet};

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

/// Opens all that are to be.
pub(super) fn open_all(
    now: Time,
    settings: BTreeMap<String, InterfaceSettings>,
) -> Result<BTreeMap<String, Named>, StartError> {
    let mut all = BTreeMap::new();
    for (name, settings) in settings {
        let interface = Err(StartError::Empty);
        let named = Named { settings, interface, retry_at: now, said: String::new() };
        all.insert(name, named);
    }
    reopen(now, &mut all);
    let failed = |name: &String| all[name].interface.is_err();
    match all.keys().find(|name| failed(name)).cloned() {
        Some(name) => match all.remove(&name).map(|named| named.interface) {
            Some(Err(error)) => Err(error),
            _ => Err(StartError::Empty),
        },
        None => Ok(all),
    }
}

/// Opens the devices anew that are gone, if it is time to; says whether one was there.
pub(super) fn reopen(now: Time, all: &mut BTreeMap<String, Named>) -> bool {
    let is_due = |named: &&Named| named.interface.is_err() && named.retry_at <= now;
    let due: BTreeSet<_> = all.values().filter(is_due).map(Named::device).collect();
    let mut is_there = false;
    for device in due {
        let at_device = all.iter_mut().filter(|(_, named)| named.settings.device == device);
        is_there |= open(now, &device, &mut at_device.collect::<Vec<_>>());
    }
    is_there
}

/// Opens a device, and all interfaces there. What is left of them goes first, since a port is
/// opened once.
fn open(now: Time, device: &str, all: &mut [(&String, &mut Named)]) -> bool {
    for (name, named) in all.iter_mut() {
        named.interface = Err(StartError::Beside((*name).clone(), device.into()));
        named.retry_at = now + REOPEN_EVERY;
    }
    let [(first, named), others @ ..] = all else { return false };
    let seated = device::open(device).map_err(|error| StartError::Open((*first).clone(), error));
    let opened = match (seated, others) {
        (Ok(opened), []) => {
            named.interface = interface(now, first, opened.into(), &named.settings);
            return named.interface.is_ok();
        }
        (Ok(opened), _) => SharedPort::new(opened)
            .map_err(|error| StartError::Device((*first).clone(), DeviceError::Verbs(error))),
        (Err(error), _) => Err(error),
    };
    match opened {
        Err(error) => named.interface = Err(error),
        Ok(port) => {
            for (name, named) in all.iter_mut() {
                let place = port.seat(named.settings.pkey).into();
                named.interface = interface(now, name, place, &named.settings);
            }
        }
    }
    all.iter().all(|(_, named)| named.interface.is_ok())
}

fn interface(
    now: Time,
    name: &str,
    place: Place,
    settings: &InterfaceSettings,
) -> Result<Interface, StartError> {
    let interface = Interface::new(now, place, settings, super::seed());
    interface.map_err(|error| StartError::Device(name.into(), error))
}

impl Named {
    fn device(&self) -> String {
        self.settings.device.clone()
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
