//! Passive opens, by a SYN or by the acknowledgment of a SYN cookie.

use super::connection::{Connection, Holder, is_after};
use super::cookie::{Offer, good_until};
use super::listener::ListenerId;
use super::segment::Ends;
use super::{Event, Tcp, TcpId, push};
use crate::stack::StackCounts;
use crate::stack::lookup::find_bound;
use crate::stack::mtu::Mtus;
use crate::stack::outbox::Outbox;
use crate::stack::packet::{IpPacket, header_len};
use pollux_verbs::time::Time;
use pollux_wire::ip::tcp::{TcpHeader, TcpSegment};
use smoltcp::socket::tcp::State;

/// The distance of an initial sequence number from the end of an earlier connection with the same
/// addresses and ports (RFC 9293 3.6.1).
const APART: u32 = 1 << 16;

impl Tcp {
    /// Handles a SYN without a connection. `earlier` is SND.MAX of an earlier connection with the
    /// same addresses and ports. Returns whether there is a listener.
    pub(super) fn handle_syn(
        &mut self,
        now: Time,
        (ends, earlier): (Ends, Option<u32>),
        (bytes, segment): (&[u8], &TcpSegment<'_>),
        mtus: &Mtus,
        (out, counts): (&mut Outbox, &mut StackCounts),
    ) -> bool {
        let Some(listener_id) = find_bound(&self.listening, ends.0) else { return false };
        let Some(listener) = self.listeners.get_mut(listener_id) else { return false };
        if listener.is_full() || self.connections.is_full() {
            counts.backlog_full += 1;
            return true;
        }
        if listener.is_crowded() {
            listener.cookies_until = good_until(now);
            self.send_cookie(now, ends, segment, mtus, (out, counts));
            return true;
        }
        let isn = self.isn(now, ends, earlier);
        if let Some(id) = self.insert_half_open(listener_id, ends) {
            self.receive_syn(now, (id, isn), (bytes, segment), mtus);
        }
        true
    }

    pub(super) fn isn(&self, now: Time, ends: Ends, earlier: Option<u32>) -> u32 {
        let isn = self.secret.isn(now, ends);
        match earlier {
            Some(sent_to) if !is_after(isn, sent_to) => sent_to.wrapping_add(APART),
            _ => isn,
        }
    }

    fn insert_half_open(&mut self, listener_id: ListenerId, ends: Ends) -> Option<TcpId> {
        let holder = Holder::HalfOpen(listener_id);
        let mut connection = Connection::new(&self.config, ends, holder, &mut self.spare);
        connection.listen();
        let id = self.insert(connection)?;
        self.listeners.get_mut(listener_id)?.half_open += 1;
        Some(id)
    }

    fn receive_syn(
        &mut self,
        now: Time,
        (id, isn): (TcpId, u32),
        (bytes, segment): (&[u8], &TcpSegment<'_>),
        mtus: &Mtus,
    ) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let (at, before) = (connection.at(now, mtus), State::Listen);
        self.engine.receive_syn(at, isn, &mut connection.sockets, bytes);
        connection.note_received((at, before), segment, &mut self.engine, None);
        if connection.state() == State::Listen {
            // smoltcp has not accepted the SYN.
            connection.socket().abort();
        }
        self.apply_event(id, Event { before, received: true });
        self.touch(id);
    }

    fn send_cookie(
        &mut self,
        now: Time,
        ends: Ends,
        syn: &TcpSegment<'_>,
        mtus: &Mtus,
        (out, counts): (&mut Outbox, &mut StackCounts),
    ) {
        let Some(offer) = Offer::of(syn) else { return };
        let peer_number = syn.header().sequence_number;
        let capacity = self.config.receive_bytes;
        let header = TcpHeader {
            sequence_number: self.secret.cookie(now, ends, peer_number, offer),
            acknowledgment_number: peer_number.wrapping_add(1),
            window: u16::try_from(capacity).unwrap_or(u16::MAX),
            ack: true,
            syn: true,
            ..TcpHeader::default()
        };
        // The window scale, as smoltcp computes it.
        let shift = (usize::BITS - capacity.leading_zeros()).saturating_sub(u16::BITS) as u8;
        let headers = header_len(ends.1.ip()) + TcpHeader::LEN;
        let mss = (mtus.of(now, ends.1.ip()) as usize).saturating_sub(headers);
        let mss = u16::try_from(mss).unwrap_or(u16::MAX);
        let ours = Offer { mss, scale: offer.scale.map(|_| shift), ..offer };
        if ours.write(&mut self.draft, ends, header).is_some() {
            counts.syn_cookies += 1;
            push(out, &self.draft);
        }
    }

    /// Handles a segment without a connection: if it acknowledges a valid cookie, creates the
    /// connection. Returns `false` if the segment has to be refused.
    pub(super) fn handle_cookie(
        &mut self,
        now: Time,
        ends: Ends,
        (bytes, segment): (&[u8], &TcpSegment<'_>),
        mtus: &Mtus,
        (out, counts): (&mut Outbox, &mut StackCounts),
    ) -> bool {
        let header = segment.header();
        let Some((listener_id, offer)) = self.offer_of(now, ends, &header) else { return false };
        let is_full = self.listeners.get(listener_id).is_none_or(|listener| listener.is_full());
        if is_full || self.connections.is_full() {
            // The peer retransmits the segment.
            counts.backlog_full += 1;
            return true;
        }
        let Some(id) = self.insert_half_open(listener_id, ends) else { return true };
        counts.syn_cookies_accepted += 1;
        let syn_header = TcpHeader {
            sequence_number: header.sequence_number.wrapping_sub(1),
            window: header.window,
            syn: true,
            ..TcpHeader::default()
        };
        let cookie = header.acknowledgment_number.wrapping_sub(1);
        let mut syn = std::mem::take(&mut self.renewed);
        let is_written = offer.write(&mut syn, (ends.1, ends.0), syn_header).is_some();
        if is_written
            && let Ok(packet) = IpPacket::parse(syn.bytes())
            && let Ok(first) = TcpSegment::parse(packet.payload)
        {
            self.receive_syn(now, (id, cookie), (syn.bytes(), &first), mtus);
        }
        self.renewed = syn;
        self.discard_answer(now, id, mtus);
        self.receive(now, id, (bytes, segment), mtus, out);
        true
    }

    /// The listener that sent a cookie, and the options in it.
    fn offer_of(&self, now: Time, ends: Ends, header: &TcpHeader) -> Option<(ListenerId, Offer)> {
        if !header.ack || header.rst || header.syn {
            return None;
        }
        let listener_id = find_bound(&self.listening, ends.0)?;
        self.listeners.get(listener_id).filter(|listener| now < listener.cookies_until)?;
        let cookie = header.acknowledgment_number.wrapping_sub(1);
        let peer_number = header.sequence_number.wrapping_sub(1);
        Some((listener_id, self.secret.offer(now, ends, peer_number, cookie)?))
    }

    /// Discards smoltcp's answer to a SYN that the cookie answered.
    fn discard_answer(&mut self, now: Time, id: TcpId, mtus: &Mtus) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let at = connection.at(now, mtus);
        let written = self.engine.draft(at, &mut connection.sockets, &mut self.draft);
        if let Some(written) = written {
            connection.note_sent((now, self.service_clock.at(now)), &written);
        }
    }
}
