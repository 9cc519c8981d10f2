//! Asynchronous events. An event of an object goes to the context of the object, and an event of
//! the port or device goes to all contexts.

use super::Hca;
use pollux_hca::Link;
use pollux_verbs::{AsyncEvent, Srq};

// Event numbers, those of `enum ib_event_type` in Linux.
pub(super) const CQ_ERR: u32 = 0;
const QP_FATAL: u32 = 1;
const QP_REQ_ERR: u32 = 2;
const QP_ACCESS_ERR: u32 = 3;
const COMM_EST: u32 = 4;
const SQ_DRAINED: u32 = 5;
const PATH_MIG: u32 = 6;
const PATH_MIG_ERR: u32 = 7;
pub(super) const DEVICE_FATAL: u32 = 8;
const PORT_ACTIVE: u32 = 9;
const PORT_ERR: u32 = 10;
const LID_CHANGE: u32 = 11;
const PKEY_CHANGE: u32 = 12;
const SM_CHANGE: u32 = 13;
const SRQ_ERR: u32 = 14;
const SRQ_LIMIT_REACHED: u32 = 15;
const QP_LAST_WQE_REACHED: u32 = 16;
const CLIENT_REREGISTER: u32 = 17;
const GID_CHANGE: u32 = 18;

impl<L: Link> Hca<L> {
    pub(super) fn flush_events(&mut self) {
        for (_, context) in self.contexts.iter_mut() {
            context.events.flush();
            context.channels.values_mut().for_each(|queue| queue.flush());
        }
    }

    pub(super) fn send_events(&mut self) {
        while let Some(event) = self.device.adapter.async_event() {
            self.send_async_event(event);
        }
    }

    fn send_async_event(&mut self, event: AsyncEvent) {
        let of_qp = |qp| self.qps.iter().find(|(_, one)| one.qp == qp).map(|(_, one)| one);
        let qp = |qp, number| of_qp(qp).map(|one| (one.context, one.user_handle, number));
        let target = match event {
            AsyncEvent::CqError(cq) => {
                let found = self.cqs.iter().find(|(_, one)| one.cq == cq);
                found.map(|(_, one)| (one.context, one.user_handle, CQ_ERR))
            }
            AsyncEvent::QpFatal(of) => qp(of, QP_FATAL),
            AsyncEvent::QpRequestError(of) => qp(of, QP_REQ_ERR),
            AsyncEvent::QpAccessError(of) => qp(of, QP_ACCESS_ERR),
            AsyncEvent::ConnectionEstablished(of) => qp(of, COMM_EST),
            AsyncEvent::SendQueueDrained(of) => qp(of, SQ_DRAINED),
            AsyncEvent::PathMigrated(of) => qp(of, PATH_MIG),
            AsyncEvent::PathMigrationError(of) => qp(of, PATH_MIG_ERR),
            AsyncEvent::LastWqeReached(of) => qp(of, QP_LAST_WQE_REACHED),
            AsyncEvent::SrqError(srq) => self.srq_event(srq, SRQ_ERR),
            AsyncEvent::SrqLimitReached(srq) => self.srq_event(srq, SRQ_LIMIT_REACHED),
            AsyncEvent::PortActive(port) => return self.send_to_all(port, PORT_ACTIVE),
            AsyncEvent::PortError(port) => return self.send_to_all(port, PORT_ERR),
            AsyncEvent::LidChange(port) => return self.send_to_all(port, LID_CHANGE),
            AsyncEvent::PkeyChange(port) => return self.send_to_all(port, PKEY_CHANGE),
            AsyncEvent::GidChange(port) => return self.send_to_all(port, GID_CHANGE),
            AsyncEvent::SmChange(port) => return self.send_to_all(port, SM_CHANGE),
            AsyncEvent::ClientReregister(port) => {
                return self.send_to_all(port, CLIENT_REREGISTER);
            }
            _ => return self.send_to_all(0, DEVICE_FATAL),
        };
        if let Some((context, handle, number)) = target {
            self.send_event(context, handle, number);
        }
    }

    fn srq_event(&self, srq: Srq, number: u32) -> Option<(u32, u64, u32)> {
        let found = self.srqs.iter().find(|(_, one)| one.srq == srq);
        found.map(|(_, one)| (one.context, one.user_handle, number))
    }

    pub(super) fn send_to_all(&mut self, port: u8, number: u32) {
        for index in 0..self.context_numbers.len() {
            let context = self.context_numbers[index];
            self.send_event(context, port.into(), number);
        }
    }

    pub(super) fn send_event(&mut self, context: u32, element: u64, number: u32) {
        if let Some(context) = self.contexts.get_mut(context) {
            let mut record = [0; 16];
            record[..8].copy_from_slice(&element.to_ne_bytes());
            record[8..12].copy_from_slice(&number.to_ne_bytes());
            context.events.send(element, record);
        }
    }
}
