//! Layouts of the commands and answers of `/dev/infiniband/uverbsN` (Linux
//! `include/uapi/rdma/ib_user_verbs.h`, `mlx5-abi.h`).
//!
//! A command is a header, the address of the answer, a fixed part and a driver's part. The kernel's
//! structures of fixed parts begin with the address (`response`); these do not. In an extended
//! command, the header has it. An answer is a fixed part and a driver's part.
//!
//! Fields and commands have the kernel's names, so that readers find them there. Numbers are in
//! native byte order, GUIDs and GIDs in that of the network.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Defines structures with their sizes in bytes, which are checked at compile time.
macro_rules! abi {
    ($( $(#[$doc:meta])* $name:ident = $bytes:literal { $($field:ident: $type:ty,)* } )*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == $bytes);

        impl Default for $name {
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    )*};
}

abi! {
    CmdHdr = 8 { command: u32, in_words: u16, out_words: u16, }
    ExCmdHdr = 16 { response: u64, provider_in_words: u16, provider_out_words: u16, reserved: u32, }

    GetContextResp = 8 { async_fd: u32, num_comp_vectors: u32, }
    AllocUcontextReq = 32 {
        total_num_bfregs: u32, num_low_latency_bfregs: u32, flags: u32, comp_mask: u32,
        max_cqe_version: u8, reserved0: u8, reserved1: u16, reserved2: u32, lib_caps: u64,
    }
    AllocUcontextResp = 72 {
        qp_tab_size: u32, bf_reg_size: u32, tot_bfregs: u32, cache_line_size: u32,
        max_sq_desc_sz: u16, max_rq_desc_sz: u16, max_send_wqebb: u32, max_recv_wr: u32,
        max_srq_recv_wr: u32, num_ports: u16, flow_action_flags: u16, comp_mask: u32,
        response_length: u32, cqe_version: u8, cmds_supp_uhw: u8, eth_min_inline: u8,
        clock_info_versions: u8, hca_core_clock_offset: u64, log_uar_size: u32,
        num_uars_per_page: u32, num_dyn_bfregs: u32, dump_fill_mkey: u32,
    }

    QueryDeviceResp = 176 {
        fw_ver: u64, node_guid: [u8; 8], sys_image_guid: [u8; 8], max_mr_size: u64,
        page_size_cap: u64, vendor_id: u32, vendor_part_id: u32, hw_ver: u32, max_qp: u32,
        max_qp_wr: u32, device_cap_flags: u32, max_sge: u32, max_sge_rd: u32, max_cq: u32,
        max_cqe: u32, max_mr: u32, max_pd: u32, max_qp_rd_atom: u32, max_ee_rd_atom: u32,
        max_res_rd_atom: u32, max_qp_init_rd_atom: u32, max_ee_init_rd_atom: u32, atomic_cap: u32,
        max_ee: u32, max_rdd: u32, max_mw: u32, max_raw_ipv6_qp: u32, max_raw_ethy_qp: u32,
        max_mcast_grp: u32, max_mcast_qp_attach: u32, max_total_mcast_qp_attach: u32, max_ah: u32,
        max_fmr: u32, max_map_per_fmr: u32, max_srq: u32, max_srq_wr: u32, max_srq_sge: u32,
        max_pkeys: u16, local_ca_ack_delay: u8, phys_port_cnt: u8, reserved: [u8; 4],
    }
    /// The part after [`QueryDeviceResp`] in the answer to the extended command.
    ExQueryDeviceTail = 128 {
        comp_mask: u32, response_length: u32, odp_caps: [u64; 3], timestamp_mask: u64,
        hca_core_clock: u64, device_cap_flags_ex: u64, rss_caps: [u32; 4], max_wq_type_rq: u32,
        raw_packet_caps: u32, tm_caps: [u32; 6], cq_moderation_caps: u64, max_dm_size: u64,
        xrc_odp_caps: u32, reserved: u32,
    }
    QueryPort = 8 { port_num: u8, reserved: [u8; 7], }
    QueryPortResp = 40 {
        port_cap_flags: u32, max_msg_sz: u32, bad_pkey_cntr: u32, qkey_viol_cntr: u32,
        gid_tbl_len: u32, pkey_tbl_len: u16, lid: u16, sm_lid: u16, state: u8, max_mtu: u8,
        active_mtu: u8, lmc: u8, max_vl_num: u8, sm_sl: u8, subnet_timeout: u8,
        init_type_reply: u8, active_width: u8, active_speed: u8, phys_state: u8, link_layer: u8,
        flags: u8, reserved: u8,
    }

    AllocPdResp = 8 { pd_handle: u32, pdn: u32, }
    RegMr = 32 {
        start: u64, length: u64, hca_va: u64, pd_handle: u32, access_flags: u32,
    }
    RegMrResp = 12 { mr_handle: u32, lkey: u32, rkey: u32, }
    ReregMr = 40 {
        mr_handle: u32, flags: u32, start: u64, length: u64, hca_va: u64, pd_handle: u32,
        access_flags: u32,
    }
    ReregMrResp = 8 { lkey: u32, rkey: u32, }
    AllocMw = 8 { pd_handle: u32, mw_type: u8, reserved: [u8; 3], }
    AllocMwResp = 8 { mw_handle: u32, rkey: u32, }

    CreateCq = 24 {
        user_handle: u64, cqe: u32, comp_vector: u32, comp_channel: i32, reserved: u32,
    }
    ExCreateCq = 32 {
        user_handle: u64, cqe: u32, comp_vector: u32, comp_channel: i32, comp_mask: u32,
        flags: u32, reserved: u32,
    }
    CreateCqDriver = 24 {
        buf_addr: u64, db_addr: u64, cqe_size: u32, cqe_comp_en: u8, cqe_comp_res_format: u8,
        flags: u16,
    }
    CreateCqResp = 8 { cq_handle: u32, cqe: u32, }
    ResizeCq = 8 { cq_handle: u32, cqe: u32, }
    ResizeCqDriver = 16 { buf_addr: u64, cqe_size: u16, reserved0: u16, reserved1: u32, }
    ResizeCqResp = 8 { cqe: u32, reserved: u32, }
    /// The end of the fixed part in the answer to an extended command.
    ExTail = 8 { comp_mask: u32, response_length: u32, }

    CreateSrq = 24 {
        user_handle: u64, pd_handle: u32, max_wr: u32, max_sge: u32, srq_limit: u32,
    }
    CreateSrqDriver = 32 {
        buf_addr: u64, db_addr: u64, flags: u32, reserved0: u32, uidx: u32, reserved1: u32,
    }
    CreateSrqResp = 16 { srq_handle: u32, max_wr: u32, max_sge: u32, srqn: u32, }
    ModifySrq = 16 { srq_handle: u32, attr_mask: u32, max_wr: u32, srq_limit: u32, }
    QuerySrqResp = 16 { max_wr: u32, max_sge: u32, srq_limit: u32, reserved: u32, }

    CreateQp = 48 {
        user_handle: u64, pd_handle: u32, send_cq_handle: u32, recv_cq_handle: u32,
        srq_handle: u32, max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32,
        max_inline_data: u32, sq_sig_all: u8, qp_type: u8, is_srq: u8, reserved: u8,
    }
    /// The part after [`CreateQp`] in the extended command.
    ExCreateQpTail = 16 {
        comp_mask: u32, create_flags: u32, rwq_ind_tbl_handle: u32, source_qpn: u32,
    }
    CreateQpDriver = 56 {
        buf_addr: u64, db_addr: u64, sq_wqe_count: u32, rq_wqe_count: u32, rq_wqe_shift: u32,
        flags: u32, uidx: u32, bfreg_index: u32, sq_buf_addr: u64, ece_options: u32,
        dci_streams: u16, reserved: u16,
    }
    CreateQpResp = 32 {
        qp_handle: u32, qpn: u32, max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32,
        max_recv_sge: u32, max_inline_data: u32, reserved: u32,
    }
    CreateQpRespDriver = 40 {
        bfreg_index: u32, ece_options: u32, comp_mask: u32, tirn: u32, tisn: u32, rqn: u32,
        sqn: u32, reserved1: u32, tir_icm_addr: u64,
    }
    QpDest = 32 {
        dgid: [u8; 16], flow_label: u32, dlid: u16, reserved: u16, sgid_index: u8, hop_limit: u8,
        traffic_class: u8, sl: u8, src_path_bits: u8, static_rate: u8, is_global: u8, port_num: u8,
    }
    ModifyQp = 112 {
        dest: QpDest, alt_dest: QpDest, qp_handle: u32, attr_mask: u32, qkey: u32, rq_psn: u32,
        sq_psn: u32, dest_qp_num: u32, qp_access_flags: u32, pkey_index: u16, alt_pkey_index: u16,
        qp_state: u8, cur_qp_state: u8, path_mtu: u8, path_mig_state: u8, en_sqd_async_notify: u8,
        max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8, timeout: u8,
        retry_cnt: u8, rnr_retry: u8, alt_port_num: u8, alt_timeout: u8, reserved: [u8; 2],
    }
    QueryQpResp = 128 {
        dest: QpDest, alt_dest: QpDest, max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32,
        max_recv_sge: u32, max_inline_data: u32, qkey: u32, rq_psn: u32, sq_psn: u32,
        dest_qp_num: u32, qp_access_flags: u32, pkey_index: u16, alt_pkey_index: u16, qp_state: u8,
        cur_qp_state: u8, path_mtu: u8, path_mig_state: u8, sq_draining: u8, max_rd_atomic: u8,
        max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8,
        rnr_retry: u8, alt_port_num: u8, alt_timeout: u8, sq_sig_all: u8, reserved: [u8; 5],
    }
    AttachMcast = 24 { gid: [u8; 16], qp_handle: u32, mlid: u16, reserved: u16, }

    /// An asynchronous event, as a program reads it from its event descriptor.
    AsyncEventDesc = 16 { element: u64, event_type: u32, reserved: u32, }
}

/// Numbers of commands, with the kernel's names.
pub(crate) mod command {
    pub(crate) const GET_CONTEXT: u32 = 0;
    pub(crate) const QUERY_DEVICE: u32 = 1;
    pub(crate) const QUERY_PORT: u32 = 2;
    pub(crate) const ALLOC_PD: u32 = 3;
    pub(crate) const DEALLOC_PD: u32 = 4;
    pub(crate) const REG_MR: u32 = 9;
    pub(crate) const REREG_MR: u32 = 11;
    pub(crate) const DEREG_MR: u32 = 13;
    pub(crate) const ALLOC_MW: u32 = 14;
    pub(crate) const DEALLOC_MW: u32 = 16;
    pub(crate) const CREATE_COMP_CHANNEL: u32 = 17;
    pub(crate) const CREATE_CQ: u32 = 18;
    pub(crate) const RESIZE_CQ: u32 = 19;
    pub(crate) const DESTROY_CQ: u32 = 20;
    pub(crate) const CREATE_QP: u32 = 24;
    pub(crate) const QUERY_QP: u32 = 25;
    pub(crate) const MODIFY_QP: u32 = 26;
    pub(crate) const DESTROY_QP: u32 = 27;
    pub(crate) const ATTACH_MCAST: u32 = 30;
    pub(crate) const DETACH_MCAST: u32 = 31;
    pub(crate) const CREATE_SRQ: u32 = 32;
    pub(crate) const MODIFY_SRQ: u32 = 33;
    pub(crate) const QUERY_SRQ: u32 = 34;
    pub(crate) const DESTROY_SRQ: u32 = 35;

    pub(crate) const NUMBER: u32 = 0xff;
    pub(crate) const EXTENDED: u32 = 0x8000_0000;

    /// A command that the device supports, with the minimum sizes of its fixed parts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Form {
        pub(crate) number: u32,
        /// Bytes of the command's fixed part, without the address of the answer.
        pub(crate) in_bytes: usize,
        /// Bytes of the answer's fixed part. If 0, the command has neither an answer nor the
        /// address of one.
        pub(crate) out_bytes: usize,
    }

    const fn form(number: u32, in_bytes: usize, out_bytes: usize) -> Form {
        Form { number, in_bytes, out_bytes }
    }

    pub(crate) const FORMS: [Form; 24] = [
        form(GET_CONTEXT, 0, 8),
        form(QUERY_DEVICE, 0, 176),
        form(QUERY_PORT, 8, 40),
        form(ALLOC_PD, 0, 4),
        form(DEALLOC_PD, 4, 0),
        form(REG_MR, 32, 12),
        form(REREG_MR, 40, 8),
        form(DEREG_MR, 4, 0),
        form(ALLOC_MW, 8, 8),
        form(DEALLOC_MW, 4, 0),
        form(CREATE_COMP_CHANNEL, 0, 4),
        form(CREATE_CQ, 24, 8),
        form(RESIZE_CQ, 8, 8),
        form(DESTROY_CQ, 8, 8),
        form(CREATE_QP, 48, 32),
        form(QUERY_QP, 8, 128),
        form(MODIFY_QP, 112, 0),
        form(DESTROY_QP, 8, 4),
        form(ATTACH_MCAST, 24, 0),
        form(DETACH_MCAST, 24, 0),
        form(CREATE_SRQ, 24, 16),
        form(MODIFY_SRQ, 16, 0),
        form(QUERY_SRQ, 8, 16),
        form(DESTROY_SRQ, 8, 4),
    ];

    pub(crate) const EXTENDED_FORMS: [Form; 4] = [
        form(QUERY_DEVICE, 8, 184),
        form(CREATE_CQ, 32, 16),
        form(CREATE_QP, 52, 40),
        form(MODIFY_QP, 112, 8),
    ];
}

/// Bits of `attr_mask` of [`ModifyQp`].
pub(crate) mod attr {
    pub(crate) const STATE: u32 = 1;
    pub(crate) const CUR_STATE: u32 = 1 << 1;
    pub(crate) const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub(crate) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(crate) const PKEY_INDEX: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const QKEY: u32 = 1 << 6;
    pub(crate) const AV: u32 = 1 << 7;
    pub(crate) const PATH_MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRY_CNT: u32 = 1 << 10;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const RQ_PSN: u32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(crate) const ALT_PATH: u32 = 1 << 14;
    pub(crate) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(crate) const SQ_PSN: u32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(crate) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(crate) const CAP: u32 = 1 << 19;
    pub(crate) const DEST_QPN: u32 = 1 << 20;
    pub(crate) const ALL: u32 = (1 << 21) - 1;
}
