//! The device of a shared port, as one of the interfaces there has it: verbs go through a lock, and
//! what they make is remembered, to be ended with the interface.

use super::{Inner, SharedPortContext, lock};
use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use std::collections::BTreeSet;
use std::time::Duration;

/// What was made at a device by one of those that share it, and is to go with it.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) pds: BTreeSet<Pd>,
    pub(super) regions: BTreeSet<LKey>,
    pub(super) cqs: BTreeSet<Cq>,
    pub(super) srqs: BTreeSet<Srq>,
    pub(super) qps: BTreeSet<Qp>,
    pub(super) ahs: BTreeSet<Ah>,
    pub(super) groups: BTreeSet<(Qp, Gid, Lid)>,
}

impl Objects {
    /// Ends all of them, what uses another first. A device that is gone has ended them itself.
    fn end(self, device: &mut dyn Device) {
        for (qp, mgid, mlid) in self.groups {
            let _ = device.detach_multicast(qp, mgid, mlid);
        }
        self.qps.into_iter().for_each(|qp| drop(device.destroy_qp(qp)));
        self.ahs.into_iter().for_each(|ah| drop(device.destroy_ah(ah)));
        self.srqs.into_iter().for_each(|srq| drop(device.destroy_srq(srq)));
        self.cqs.into_iter().for_each(|cq| drop(device.destroy_cq(cq)));
        self.regions.into_iter().for_each(|region| drop(device.deregister(region)));
        self.pds.into_iter().for_each(|pd| drop(device.destroy_pd(pd)));
    }
}

/// The device of a shared port, as one interface has it. When it goes, so does all that was made by
/// it: others stay at the device, and what is posted there names memory that goes as well.
pub(super) struct SharedDevice(pub(super) SharedPortContext);

impl Drop for SharedDevice {
    fn drop(&mut self) {
        let Inner { device, contexts, .. } = &mut *lock(&self.0.inner);
        std::mem::take(&mut contexts[self.0.number].objects).end(&mut **device);
    }
}

/// Verbs that the device does, for whoever asks.
macro_rules! pass_on {
    ($($verb:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(fn $verb(&self, $($name: $kind),*) -> $answer {
            lock(&self.0.inner).device.$verb($($name),*)
        })*
    };
}
macro_rules! pass_on_mut {
    ($($verb:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(fn $verb(&mut self, $($name: $kind),*) -> $answer {
            lock(&self.0.inner).device.$verb($($name),*)
        })*
    };
}
/// Verbs that make something, which is remembered in a set of [`Objects`].
macro_rules! make {
    ($($set:ident: $verb:ident($($name:ident: $kind:ty),*) -> $made:ty;)*) => {
        $(fn $verb(&mut self, $($name: $kind),*) -> Result<$made, VerbsError> {
            let Inner { device, contexts, .. } = &mut *lock(&self.0.inner);
            let made = device.$verb($($name),*)?;
            contexts[self.0.number].objects.$set.insert(made);
            Ok(made)
        })*
    };
}
/// Verbs that end something, which is forgotten then.
macro_rules! end {
    ($($set:ident: $verb:ident($name:ident: $kind:ty);)*) => {
        $(fn $verb(&mut self, $name: $kind) -> Result<(), VerbsError> {
            let Inner { device, contexts, .. } = &mut *lock(&self.0.inner);
            device.$verb($name)?;
            contexts[self.0.number].objects.$set.remove(&$name);
            Ok(())
        })*
    };
}

impl Device for SharedDevice {
    pass_on! {
        attributes() -> DeviceAttributes;
        port(port: u8) -> Result<PortAttributes, VerbsError>;
        gid(port: u8, index: u8) -> Result<Gid, VerbsError>;
        pkey(port: u8, index: u16) -> Result<PKey, VerbsError>;
        qpn(qp: Qp) -> Result<Qpn, VerbsError>;
        query_qp(qp: Qp) -> Result<(QpState, QpAttributes), VerbsError>;
    }
    make! {
        pds: create_pd() -> Pd;
        cqs: create_cq(completions_max: u32) -> Cq;
        srqs: create_srq(pd: Pd, requests_max: u32, sges_max: u32) -> Srq;
        qps: create_qp(init: &QpInit) -> Qp;
        ahs: create_ah(pd: Pd, address: &AddressVector) -> Ah;
    }
    end! {
        pds: destroy_pd(pd: Pd);
        regions: deregister(region: LKey);
        cqs: destroy_cq(cq: Cq);
        srqs: destroy_srq(srq: Srq);
        qps: destroy_qp(qp: Qp);
        ahs: destroy_ah(ah: Ah);
    }
    pass_on_mut! {
        // No interface has any.
        create_window(pd: Pd) -> Result<MemoryWindow, VerbsError>;
        destroy_window(window: RKey) -> Result<(), VerbsError>;
        set_srq_limit(srq: Srq, limit: u32) -> Result<(), VerbsError>;
        modify_qp(qp: Qp, change: &QpAttributes) -> Result<(), VerbsError>;
        post_send(qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError>;
        post_recv(qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError>;
        post_srq_recv(srq: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError>;
        poll(cq: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError>;
        arm(cq: Cq, arm: Arm) -> Result<(), VerbsError>;
        wait(timeout: Duration) -> Result<Option<Cq>, VerbsError>;
        // What another worker gets nobody shares: it needs no seat.
        open_shared() -> Result<Box<dyn Device + Send>, VerbsError>;
    }

    fn register(
        &mut self,
        pd: Pd,
        memory: &Memory,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let Inner { device, contexts, .. } = &mut *lock(&self.0.inner);
        let region = device.register(pd, memory, access)?;
        contexts[self.0.number].objects.regions.insert(region.lkey);
        Ok(region)
    }

    fn attach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        let Inner { device, contexts, .. } = &mut *lock(&self.0.inner);
        device.attach_multicast(qp, mgid, mlid)?;
        contexts[self.0.number].objects.groups.insert((qp, mgid, mlid));
        Ok(())
    }

    fn detach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        let Inner { device, contexts, .. } = &mut *lock(&self.0.inner);
        device.detach_multicast(qp, mgid, mlid)?;
        contexts[self.0.number].objects.groups.remove(&(qp, mgid, mlid));
        Ok(())
    }

    /// Events are everybody's: each interface knows its own queue pairs, and all have the port.
    fn async_event(&mut self) -> Option<AsyncEvent> {
        lock(&self.0.inner).event(self.0.number)
    }
}
