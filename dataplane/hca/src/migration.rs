//! Automatic path migration (APM): a connection with an alternate path switches to it when its path
//! fails (IBA 17.2.8).
//!
//! ```text
//!               the consumer loads an alternate path
//!     Migrated -----------------------------------------> Rearm
//!        ^                                                  | a packet with MigReq 0 arrives:
//!        |                                                  | the peer has an alternate path, too
//!        |                                                  v
//!        +------------------------------------------------ Armed
//!          a packet with MigReq 1 arrives by the alternate path; no retry of a request is left;
//!          the consumer requests it
//! ```
//!
//! A packet has MigReq 1 if its sender is in Migrated. In Rearm and in Migrated, a received MigReq
//! of 1 has no effect: a peer that is not armed yet, or has no alternate path, sends it, too. In
//! Armed, it requests that this end migrate as well.
//!
//! After a migration the alternate path is the path, and there is no alternate path until the
//! consumer loads one. The consumer should load one only after the peer has migrated, too: it moves
//! this end to Rearm, whose packets have MigReq 0, and a peer that is still armed accepts only
//! MigReq 1 by its alternate path. The requester retransmits outstanding packets along the new path
//! immediately, because answers along the old path are dropped, and because an armed peer must
//! learn of the migration.
//!
//! Why a consumer cannot go back from Rearm to Migrated: the peer may be armed by then, and would
//! drop packets with MigReq 1 that arrive by the old path.
//!
//! The adapter has one port, so its paths differ only in their LIDs, service levels and GRHs.

use super::common::Common;
use super::port::DropReason;
use super::qp::{QueuePair, matches_path};
use super::{Adapter, Shared};
use crate::frame::Arrival;
use pollux_verbs::error::invalid;
use pollux_verbs::{AsyncEvent, Migration, QpAttributes, VerbsError, check};

impl Common {
    #[inline(always)]
    pub(super) fn migration(&self) -> Migration {
        self.attributes.migration.unwrap_or_default()
    }
}

impl QueuePair {
    /// Checks that a packet with MigReq 1, which arrived in Armed, used the alternate path (IBA
    /// 17.2.8.1).
    pub(super) fn check_alternate_path(
        &mut self,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), DropReason> {
        let Common { attributes, handle, refusal_reported, .. } = &mut self.common;
        let alternate = attributes.alternate_path.unwrap_or_default();
        let own_lid = shared.port.lid.0 | u16::from(alternate.src_path_bits);
        let is_to_alternate = arrival.head.dlid.0 == own_lid;
        if is_to_alternate && matches_path(&alternate, &shared.port, arrival).is_ok() {
            return Ok(());
        }
        if !std::mem::replace(refusal_reported, true) {
            shared.events.push_back(AsyncEvent::PathMigrationError(*handle));
        }
        Err(DropReason::Migration)
    }

    /// Handles the MigReq bit of a packet that arrived by the right path. MigReq 0 in Rearm shows
    /// that the peer has an alternate path, so the state becomes Armed. MigReq 1 in Armed shows
    /// that the peer has migrated, so this end migrates, too.
    #[inline]
    pub(super) fn handle_mig_req(&mut self, shared: &mut Shared, mig_req: bool) {
        match (self.common.migration(), mig_req) {
            (Migration::Rearm, false) => {
                self.common.attributes.migration = Some(Migration::Armed);
                self.common.heads.invalidate();
            }
            (Migration::Armed, true) => {
                self.migrate();
                shared.events.push_back(AsyncEvent::PathMigrated(self.common.handle));
            }
            _ => {}
        }
    }

    /// Migrates if the retries on the current path are used up and migration is armed. Returns
    /// whether it migrated.
    pub(super) fn migrate_if_exhausted(&mut self, shared: &mut Shared) -> bool {
        let migrates = self.requester.is_exhausted() && self.common.migration() == Migration::Armed;
        if migrates {
            self.migrate();
            shared.events.push_back(AsyncEvent::PathMigrated(self.common.handle));
        }
        migrates
    }

    /// Applies a change of the migration state that the consumer made. `before` is the old state.
    /// There is no event, because the consumer knows of its own change.
    pub(super) fn change_migration(&mut self, before: Migration) {
        match (before, self.common.migration()) {
            (_, Migration::Rearm) => self.common.refusal_reported = false,
            (Migration::Armed, Migration::Migrated) => self.migrate(),
            _ => {}
        }
    }

    fn migrate(&mut self) {
        let attributes = &mut self.common.attributes;
        attributes.path = attributes.alternate_path.take().or(attributes.path);
        attributes.migration = Some(Migration::Migrated);
        self.common.heads.invalidate();
        self.requester.restart(&self.common.attributes);
    }
}

impl Adapter {
    /// Checks that the consumer may request this change of the migration state.
    pub(super) fn check_migration(
        &self,
        common: &Common,
        change: &QpAttributes,
    ) -> Result<(), VerbsError> {
        const VERB: &str = "modify_qp";
        if change.alternate_path.is_some() && self.shared.port.is_ethernet() {
            let reason = "the adapter migrates between paths of a subnet only";
            return Err(invalid(VERB, "alternate_path", reason));
        }
        let alternate = change.alternate_path.or(common.attributes.alternate_path);
        check::migration(common.migration(), change.migration, alternate.is_some())
    }
}
