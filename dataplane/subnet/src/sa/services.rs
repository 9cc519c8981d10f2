//! Service records, each with a lease (IBA 15.2.5.14).

use crate::time::Time;
use pollux_wire::address::Gid;
use pollux_wire::keys::PKey;
use pollux_wire::mad::MadStatus;
use pollux_wire::mad::sa::{ServiceRecord, ServiceRecordMask as Mask};
use pollux_wire::mad::service_id::ServiceId;
use std::collections::BTreeMap;
use std::time::Duration;

pub const SERVICES_MAX: usize = 4096;

type Key = (u64, Gid, PKey);

#[derive(Default)]
pub(super) struct Services {
    all: BTreeMap<Key, (ServiceRecord, Option<Time>)>,
}

fn key(record: &ServiceRecord) -> Key {
    let ServiceId(id) = record.service_id;
    (id, record.service_gid, record.service_p_key)
}

const IDENTITY: Mask = Mask::SERVICE_ID.with(Mask::SERVICE_GID).with(Mask::SERVICE_P_KEY);

impl Services {
    /// Registers a service, or changes a registration. A change needs the same service key.
    pub(super) fn announce(
        &mut self,
        now: Time,
        mask: Mask,
        wanted: &ServiceRecord,
    ) -> Result<ServiceRecord, MadStatus> {
        if !mask.contains(Mask::SERVICE_ID.with(Mask::SERVICE_GID)) {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
        }
        let mut record = *wanted;
        if !mask.contains(Mask::SERVICE_LEASE) {
            record.service_lease_s = ServiceRecord::LEASE_INDEFINITE;
        }
        if !mask.contains(Mask::SERVICE_P_KEY) {
            record.service_p_key = PKey::DEFAULT;
        }
        let known = self.all.get(&key(&record));
        if known.is_some_and(|(own, _)| own.service_key != record.service_key) {
            return Err(MadStatus::SA_DENIED);
        }
        if known.is_none() && self.all.len() >= SERVICES_MAX {
            return Err(MadStatus::SA_NO_RESOURCES);
        }
        let end = (record.service_lease_s != ServiceRecord::LEASE_INDEFINITE)
            .then(|| now + Duration::from_secs(record.service_lease_s.into()));
        self.all.insert(key(&record), (record, end));
        Ok(record)
    }

    pub(super) fn withdraw(
        &mut self,
        mask: Mask,
        wanted: &ServiceRecord,
    ) -> Result<ServiceRecord, MadStatus> {
        if !mask.contains(Mask::SERVICE_ID.with(Mask::SERVICE_GID)) {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
        }
        let found = self.all.values().map(|(record, _)| record);
        let mut found = found.filter(|record| matches(mask.common(IDENTITY), wanted, record));
        let record = found.next().copied().ok_or(MadStatus::SA_NO_RECORDS)?;
        if record.service_key != wanted.service_key {
            return Err(MadStatus::SA_DENIED);
        }
        self.all.remove(&key(&record));
        Ok(record)
    }

    /// The registrations that match a query. Only trusted requesters get the service keys.
    pub(super) fn records(
        &self,
        now: Time,
        mask: Mask,
        wanted: &ServiceRecord,
        is_trusted: bool,
    ) -> Vec<ServiceRecord> {
        let shown = |(record, end): &(ServiceRecord, Option<Time>)| ServiceRecord {
            service_key: if is_trusted { record.service_key } else { [0; 16] },
            service_lease_s: end
                .map_or(record.service_lease_s, |end| end.since(now).as_secs() as u32),
            ..*record
        };
        let matching = self.all.values().filter(|(record, _)| matches(mask, wanted, record));
        matching.map(shown).collect()
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.all.values().filter_map(|(_, end)| *end).min()
    }

    pub(super) fn timeout(&mut self, now: Time) {
        self.all.retain(|_, (_, end)| end.is_none_or(|end| end > now));
    }
}

fn matches(mask: Mask, wanted: &ServiceRecord, own: &ServiceRecord) -> bool {
    let is = |bit: Mask, equal: bool| !mask.contains(bit) || equal;
    is(Mask::SERVICE_ID, wanted.service_id == own.service_id)
        && is(Mask::SERVICE_GID, wanted.service_gid == own.service_gid)
        && is(Mask::SERVICE_P_KEY, wanted.service_p_key == own.service_p_key)
        && is(Mask::SERVICE_NAME, wanted.service_name == own.service_name)
        && is(Mask::DATA8, wanted.data8 == own.data8)
        && is(Mask::DATA16, wanted.data16 == own.data16)
        && is(Mask::DATA32, wanted.data32 == own.data32)
        && is(Mask::DATA64, wanted.data64 == own.data64)
}
