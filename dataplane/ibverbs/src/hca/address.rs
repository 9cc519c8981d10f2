//! Ports, GIDs, P_Keys, address handles and multicast groups.

use super::limits::query_port;
use super::owned::{Owned, checked};
use super::{AddressHandle, Hca, end_in};
use ibverbs_sys as ffi;
use pollux_verbs::error::{none, over};
use pollux_verbs::{AddressVector, Ah, Pd, PortAttributes, Qp, VerbsError, check};
use pollux_wire::address::{Gid, Lid};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::units::Mtu;
use std::mem::zeroed;

impl Hca {
    pub(super) fn port(&self, verb: &'static str, port: u8) -> Result<PortAttributes, VerbsError> {
        check::port(verb, &self.attributes.name, port, self.attributes.ports)?;
        let raw = query_port(&self.context, port).map_err(self.refused(verb))?;
        Ok(PortAttributes {
            state: PortState(raw.state as u8),
            lid: Lid(raw.lid),
            lmc: raw.lmc,
            sm_lid: Lid(raw.sm_lid),
            sm_sl: raw.sm_sl,
            mtu_max: Mtu(raw.max_mtu as u8),
            mtu: Mtu(raw.active_mtu as u8),
            // The GID index of an address has eight bits, so later entries are unusable.
            gids: raw.gid_tbl_len.clamp(0, 255) as u8,
            pkeys: raw.pkey_tbl_len,
        })
    }

    pub(super) fn gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        const VERB: &str = "gid";
        if index >= self.port(VERB, port)?.gids {
            return Err(none(VERB, "entry of the GID table"));
        }
        let mut gid = ffi::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is live, and the library writes one GID.
        let answer =
            unsafe { ffi::ibv_query_gid(self.context.raw(), port, index.into(), &raw mut gid) };
        checked(answer).map_err(self.refused(VERB))?;
        // SAFETY: all variants of the union are plain bytes or numbers, so `raw` is always valid.
        Ok(Gid(unsafe { gid.raw }))
    }

    pub(super) fn pkey(&self, port: u8, index: u16) -> Result<PKey, VerbsError> {
        const VERB: &str = "pkey";
        if index >= self.port(VERB, port)?.pkeys {
            return Err(none(VERB, "entry of the P_Key table"));
        }
        let mut pkey = 0;
        // SAFETY: the context is live, and the library writes one number.
        let answer =
            unsafe { ffi::ibv_query_pkey(self.context.raw(), port, index.into(), &raw mut pkey) };
        checked(answer).map_err(self.refused(VERB))?;
        Ok(PKey(u16::from_be(pkey)))
    }

    /// Checks an address vector and converts it to the library's format.
    pub(super) fn raw_path(
        &self,
        verb: &'static str,
        path: &AddressVector,
    ) -> Result<ffi::ibv_ah_attr, VerbsError> {
        let port = self.port(verb, path.port)?;
        check::path(verb, path, &port, self.attributes.can.subnet)?;
        // SAFETY: all zero is a value of this structure of numbers.
        let mut raw: ffi::ibv_ah_attr = unsafe { zeroed() };
        raw.dlid = path.dlid.0;
        raw.sl = path.sl;
        raw.src_path_bits = path.src_path_bits;
        raw.static_rate = path.static_rate;
        raw.port_num = path.port;
        if let Some(grh) = path.grh {
            raw.is_global = 1;
            raw.grh.dgid.raw = grh.dgid.0;
            raw.grh.flow_label = grh.flow_label;
            raw.grh.sgid_index = grh.sgid_index;
            raw.grh.hop_limit = grh.hop_limit;
            raw.grh.traffic_class = grh.traffic_class;
        }
        Ok(raw)
    }

    pub(super) fn create_ah(&mut self, pd: Pd, path: &AddressVector) -> Result<Ah, VerbsError> {
        const VERB: &str = "create_ah";
        let raw_pd = self.pd(VERB, pd)?;
        let mut raw = self.raw_path(VERB, path)?;
        let ahs_max = self.attributes.limits.ahs_max;
        // SAFETY: the domain is live, and the handle is destroyed before it (order of the fields;
        // `destroy_pd` refuses while a handle uses the domain).
        let made =
            unsafe { Owned::new(ffi::ibv_create_ah(raw_pd, &raw mut raw), ffi::ibv_destroy_ah) };
        let object = made.map_err(self.refused(VERB))?;
        let kept = self.ahs.insert(AddressHandle { object, pd });
        kept.map(Ah).map_err(|_| over(VERB, "ahs_max", ahs_max))
    }

    pub(super) fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError> {
        const VERB: &str = "destroy_ah";
        self.ah(ah).ok_or(none(VERB, "address handle"))?;
        let ended = end_in(&mut self.ahs, ah.0, |ah| &mut ah.object);
        ended.map(drop).map_err(self.refused(VERB))
    }

    pub(super) fn attach_multicast(
        &mut self,
        qp: Qp,
        mgid: Gid,
        mlid: Lid,
    ) -> Result<(), VerbsError> {
        const VERB: &str = "attach_multicast";
        let kept = self.qp(VERB, qp)?;
        check::multicast(kept.init.qp_type, mgid, mlid, self.attributes.can.subnet)?;
        if self.memberships.contains(&(qp, mgid, mlid)) {
            return Ok(());
        }
        let max = self.attributes.limits.multicast_attachments_max;
        if self.memberships.len() >= max as usize {
            return Err(over(VERB, "multicast_attachments_max", max));
        }
        let group = ffi::ibv_gid { raw: mgid.0 };
        // SAFETY: the queue pair is live, and the library only reads the GID.
        let answer = unsafe { ffi::ibv_attach_mcast(kept.object.raw(), &raw const group, mlid.0) };
        checked(answer).map_err(self.refused(VERB))?;
        self.memberships.insert((qp, mgid, mlid));
        Ok(())
    }

    pub(super) fn detach_multicast(
        &mut self,
        qp: Qp,
        mgid: Gid,
        mlid: Lid,
    ) -> Result<(), VerbsError> {
        const VERB: &str = "detach_multicast";
        if !self.memberships.contains(&(qp, mgid, mlid)) {
            return Err(none(VERB, "membership"));
        }
        let kept = self.qp(VERB, qp)?;
        let group = ffi::ibv_gid { raw: mgid.0 };
        // SAFETY: the queue pair is live, and the library only reads the GID.
        let answer = unsafe { ffi::ibv_detach_mcast(kept.object.raw(), &raw const group, mlid.0) };
        checked(answer).map_err(self.refused(VERB))?;
        self.memberships.remove(&(qp, mgid, mlid));
        Ok(())
    }
}
