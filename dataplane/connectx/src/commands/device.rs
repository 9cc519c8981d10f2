//! Commands about the device: its context, its limits, and its port.

use super::queues::{COMPLETION_VECTORS, CQ_ENTRIES_MAX};
use super::{Answer, Call, driver, errno};
use crate::abi;
use crate::doorbell::{PAGE_BYTES, REGISTER_BYTES, REGISTERS};
use crate::hca::Hca;
use pollux_hca::Link;
use pollux_verbs::Device;
use pollux_wire::mad::smp::PortState;
use rustix::io::Errno;
use zerocopy::IntoBytes;

/// Capabilities: automatic path migration, port-active events, a system image GUID, RNR NAKs, and
/// memory windows of types 1 and 2B.
const DEVICE_CAP_FLAGS: u32 = 1 << 4 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 17 | 1 << 24;

/// The OUI of the vendor. sysfs has the PCI vendor ID instead.
const MELLANOX: u32 = 0x02c9;

impl<L: Link> Hca<L> {
    /// Answers GET_CONTEXT, the first command of a context. `events` is the program's descriptor of
    /// asynchronous events.
    pub(crate) fn get_context(&mut self, context: u32, call: &Call<'_>, events: i32) -> Answer {
        let asked: abi::AllocUcontextReq = driver(call.body);
        let context = self.contexts.get_mut(context).ok_or(Errno::BADF)?;
        context.cqe_version = asked.max_cqe_version.min(1);
        let fixed =
            abi::GetContextResp { async_fd: events as u32, num_comp_vectors: COMPLETION_VECTORS };
        let driver = abi::AllocUcontextResp {
            qp_tab_size: 1 << 18,
            bf_reg_size: REGISTER_BYTES as u32,
            tot_bfregs: REGISTERS,
            cache_line_size: 64,
            max_sq_desc_sz: 1024,
            max_rq_desc_sz: 512,
            max_send_wqebb: 32_768,
            max_recv_wr: 32_768,
            max_srq_recv_wr: 32_767,
            num_ports: 1,
            comp_mask: 1 << 1,
            response_length: size_of::<abi::AllocUcontextResp>() as u32,
            cqe_version: context.cqe_version,
            cmds_supp_uhw: 3,
            log_uar_size: PAGE_BYTES.ilog2(),
            num_uars_per_page: 1,
            ..Default::default()
        };
        Ok(call.answer(&fixed, driver.as_bytes()))
    }

    pub(super) fn query_device(&self, call: &Call<'_>) -> Answer {
        let all = self.device.attributes();
        let limits = all.limits;
        const ATOMIC_HCA: u32 = 1;
        let guid = all.node_guid.0.to_be_bytes();
        let fixed = abi::QueryDeviceResp {
            fw_ver: 20 << 32 | 38 << 16 | 1002,
            node_guid: guid,
            sys_image_guid: guid,
            max_mr_size: i64::MAX as u64,
            page_size_cap: 0xffff_f000,
            vendor_id: MELLANOX,
            vendor_part_id: 4123,
            max_qp: limits.qps_max,
            max_qp_wr: limits.requests_max.min(32_768),
            device_cap_flags: DEVICE_CAP_FLAGS,
            max_sge: 30,
            max_sge_rd: 30,
            max_cq: limits.cqs_max,
            max_cqe: CQ_ENTRIES_MAX - 1,
            max_mr: limits.regions_max,
            max_pd: limits.pds_max,
            max_qp_rd_atom: limits.responder_resources_max.into(),
            max_res_rd_atom: limits.qps_max * u32::from(limits.responder_resources_max),
            max_qp_init_rd_atom: limits.initiator_depth_max.into(),
            atomic_cap: ATOMIC_HCA,
            max_mw: limits.windows_max,
            max_mcast_grp: limits.multicast_attachments_max,
            max_mcast_qp_attach: limits.multicast_attachments_max,
            max_total_mcast_qp_attach: limits.multicast_attachments_max,
            max_ah: i32::MAX as u32,
            max_srq: limits.srqs_max,
            max_srq_wr: 32_767,
            max_srq_sge: 31,
            max_pkeys: self.device.adapter.port().pkeys.len() as u16,
            local_ca_ack_delay: 16,
            phys_port_cnt: 1,
            ..Default::default()
        };
        if !call.is_extended {
            return Ok(fixed.as_bytes().to_vec());
        }
        let tail = abi::ExQueryDeviceTail {
            response_length: (size_of::<abi::QueryDeviceResp>()
                + size_of::<abi::ExQueryDeviceTail>()) as u32,
            device_cap_flags_ex: fixed.device_cap_flags.into(),
            ..Default::default()
        };
        let mut answer = [fixed.as_bytes(), tail.as_bytes()].concat();
        answer.resize(call.answer_fixed, 0);
        // The driver's part contains only its length: no offloads, no CQE compression.
        let length = [0, call.answer_bytes.saturating_sub(call.answer_fixed) as u32];
        answer.extend_from_slice(length.as_bytes());
        answer.resize(call.answer_bytes.max(answer.len()), 0);
        Ok(answer)
    }

    pub(super) fn query_port(&self, call: &Call<'_>) -> Answer {
        let query: abi::QueryPort = call.only()?;
        let port = self.device.port(query.port_num).map_err(errno)?;
        const IS_SM_DISABLED: u32 = 1 << 10;
        const LINK_UP: u8 = 5;
        const POLLING: u8 = 2;
        const INFINIBAND: u8 = 1;
        let is_up = port.state >= PortState::INITIALIZE;
        let fixed = abi::QueryPortResp {
            port_cap_flags: 0x2259_e848 | IS_SM_DISABLED,
            max_msg_sz: 1 << 30,
            gid_tbl_len: port.gids.into(),
            pkey_tbl_len: port.pkeys,
            lid: port.lid.0,
            sm_lid: port.sm_lid.0,
            state: port.state.0,
            max_mtu: port.mtu_max.0,
            active_mtu: port.mtu.0,
            lmc: port.lmc,
            max_vl_num: 4,
            sm_sl: port.sm_sl,
            subnet_timeout: 18,
            // 4X EDR.
            active_width: 2,
            active_speed: 32,
            phys_state: if is_up { LINK_UP } else { POLLING },
            link_layer: INFINIBAND,
            ..Default::default()
        };
        Ok(fixed.as_bytes().to_vec())
    }
}
