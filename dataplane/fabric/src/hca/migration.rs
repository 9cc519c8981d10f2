//! Automatic path migration: a connection with a second path takes it when the first one fails (IBA
//! 17.2.8).
//!
//! ```text
//!                  the owner loads an alternate path
//!     Migrated -----------------------------------------> Rearm
//!        ^                                                  | a packet comes with MigReq 0:
//!        |                                                  | the peer has an alternate path, too
//!        |                                                  v
//!        +------------------------------------------------ Armed
//!          a packet comes by the alternate path with MigReq 1; no retry of a request is left;
//!          the owner says so
//! ```
//!
//! What is sent says in MigReq whether its sender is in Migrated. In Rearm and in Migrated that
//! leads nowhere if it is 1: peers that are still to be armed say so, and those that know of no
//! second path. It is only from an armed peer that it asks us to follow.
//!
//! Whichever way it migrates, the alternate path becomes the path, and there is no alternate one
//! until the owner loads the next. It should do that when the peer has followed: one that is still
//! armed hears by its alternate path of MigReq 1 only. What a requester had sent goes again by the
//! new path at once, since answers that are on their way by the old one will be dropped, and a peer
//! that is armed has to hear of it.
//!
//! Why Rearm cannot be taken back: the peer may be armed by then, and drops what says 1 by the old
//! path.
//!
//! The adapter has one port, so its paths differ in their LIDs, service levels and GRHs. With more
//! than one, an alternate path could begin at another: packets would be handed to the link that
//! their path names, an arrival would name the link that it came by, and [`has_come_by`] would look
//! at that as well.

use super::port::{Drop, Port};
use super::qp::{Common, QueuePair};
use super::{Adapter, Shared};
use crate::frame::Arrival;
use pollux_verbs::error::invalid;
use pollux_verbs::{AddressVector, AsyncEvent, Migration, QpAttributes, VerbsError};

impl Common {
    /// The state of migration; a queue pair that was told nothing has one path.
    #[inline(always)]
    pub(super) fn migration(&self) -> Migration {
        self.attributes.migration.unwrap_or_default()
    }
}

impl QueuePair {
    /// Whether a packet came by the way that it must (IBA 9.6.1.5, 17.2.8.1).
    pub(super) fn check_way(
        &mut self,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), Drop> {
        let Common { attributes, handle, refusal_told, .. } = &mut self.common;
        if !arrival.head.mig_req || attributes.migration != Some(Migration::Armed) {
            return has_come_by(&attributes.path.unwrap_or_default(), &shared.port, arrival);
        }
        let alternate = attributes.alternate_path.unwrap_or_default();
        let own_lid = shared.port.lid.0 | u16::from(alternate.src_path_bits);
        let is_there = arrival.head.dlid.0 == own_lid;
        if is_there && has_come_by(&alternate, &shared.port, arrival).is_ok() {
            return Ok(());
        }
        if !std::mem::replace(refusal_told, true) {
            shared.events.push_back(AsyncEvent::PathMigrationError(*handle));
        }
        Err(Drop::Migration)
    }

    /// A packet has come by the way that it must: where it shows that the peer is ready we are as
    /// well, and where it shows that the peer has migrated we follow.
    #[inline]
    pub(super) fn follow(&mut self, shared: &mut Shared, mig_req: bool) {
        match (self.common.migration(), mig_req) {
            (Migration::Rearm, false) => {
                self.common.attributes.migration = Some(Migration::Armed);
                self.common.usual.forget();
            }
            (Migration::Armed, true) => {
                self.migrate();
                shared.events.push_back(AsyncEvent::PathMigrated(self.common.handle));
            }
            _ => {}
        }
    }

    /// Takes the alternate path if requests have been sent by this one as often as they may; says
    /// whether.
    pub(super) fn escapes(&mut self, shared: &mut Shared) -> bool {
        let escapes = self.requester.is_exhausted() && self.common.migration() == Migration::Armed;
        if escapes {
            self.migrate();
            shared.events.push_back(AsyncEvent::PathMigrated(self.common.handle));
        }
        escapes
    }

    /// The owner may have changed the state from `before`. Who migrates by a verb needs no event.
    pub(super) fn change_migration(&mut self, before: Migration) {
        match (before, self.common.migration()) {
            (_, Migration::Rearm) => self.common.refusal_told = false,
            (Migration::Armed, Migration::Migrated) => self.migrate(),
            _ => {}
        }
    }

    fn migrate(&mut self) {
        let attributes = &mut self.common.attributes;
        attributes.path = attributes.alternate_path.take().or(attributes.path);
        attributes.migration = Some(Migration::Migrated);
        self.common.usual.forget();
        self.requester.begin_again(&self.common.attributes);
    }
}

impl Adapter {
    /// What an owner may ask for.
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
        let reason = match (common.migration(), change.migration) {
            (_, Some(Migration::Armed)) => {
                "only the peer's packets make a queue pair Armed; ask for Rearm"
            }
            (_, Some(Migration::Rearm)) if alternate.is_none() => {
                "to Rearm, a queue pair needs an alternate_path"
            }
            (Migration::Rearm, Some(Migration::Migrated)) => {
                "a queue pair in Rearm can migrate once a packet of the peer's has made it Armed"
            }
            _ => return Ok(()),
        };
        Err(invalid(VERB, "migration", reason))
    }
}

/// Whether a packet came from the other end of a path.
fn has_come_by(path: &AddressVector, port: &Port, arrival: &Arrival<'_>) -> Result<(), Drop> {
    if arrival.head.slid != path.dlid && !port.is_ethernet() {
        return Err(Drop::Slid);
    }
    match (arrival.grh, path.grh) {
        (None, None) => Ok(()),
        (Some(came), Some(ours)) if came.sgid == ours.dgid => Ok(()),
        _ => Err(Drop::Grh),
    }
}
