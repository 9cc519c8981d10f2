"""Cases that rdma-core's own tests lack, by its classes: tests/pyverbs.rs runs them beside those."""
import ctypes
import errno
import mmap
import os
import select

from pyverbs.cq import CQ, CompChannel
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPCap
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

from tests.base import RCResources, RDMATestCase

# Rounds of polling; no healthy run comes near it.
POLLS_MAX = 1 << 24


def sockets():
    """The sockets of this process: pyverbs does not tell the descriptor of a channel."""
    files = ((int(fd), f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd'))
    return {fd for fd, link in files
            if os.path.lexists(link) and os.readlink(link).startswith('socket:')}


class Host(RCResources):
    """A connection and its queues, one for sends and one for receives."""

    def __init__(self, info, cq_entries=100, access=e.IBV_ACCESS_LOCAL_WRITE):
        self.cq_entries = cq_entries
        self.access = access
        super().__init__(info['dev_name'], info['ib_port'], info['gid_index'])

    def create_cq(self):
        before = sockets()
        self.channel = CompChannel(self.ctx)
        # The others are ends of the adapter, which is in this process.
        self.channel_fd = min(sockets() - before)
        self.cq = CQ(self.ctx, self.cq_entries, None, self.channel, 0)

    def create_mr(self):
        self.mr = MR(self.pd, self.msg_size, self.access)

    def create_qp_cap(self):
        return QPCap(max_recv_wr=100, max_send_wr=100)

    def sge(self, size=8):
        return [SGE(self.mr.buf, size, self.mr.lkey)]

    def post_recv(self, wr_id=0, size=8):
        self.qp.post_recv(RecvWR(wr_id, num_sge=1, sg=self.sge(size)))

    def post_send(self, wr_id=0, flags=0, sge=None):
        sge = sge or self.sge()
        flags |= e.IBV_SEND_SIGNALED
        self.qp.post_send(SendWR(wr_id, num_sge=1, sg=sge, send_flags=flags))

    def poll(self, count=1):
        wcs = []
        for _ in range(POLLS_MAX):
            wcs += self.cq.poll(count - len(wcs))[1]
            if len(wcs) == count:
                return wcs
        raise AssertionError(f'{len(wcs)} of {count} completions')

    def events(self):
        """Events that wait at the channel, taken."""
        count = 0
        while select.select([self.channel_fd], [], [], 0)[0]:
            self.channel.get_cq_event(self.cq)
            self.cq.ack_events(1)
            count += 1
        return count

    def event(self):
        """Waits for one event, and takes it."""
        self.channel.get_cq_event(self.cq)
        self.cq.ack_events(1)


class Verbs(RDMATestCase):
    def connect(self, **arguments):
        self.client, self.server = (Host(self.dev_info, **arguments) for _ in range(2))
        self.client.pre_run(self.server.psns, self.server.qps_num)
        self.server.pre_run(self.client.psns, self.client.qps_num)
        return self.client, self.server

    def resize(self):
        client, server = self.connect(cq_entries=15)
        sent = polled = 0

        def send(count):
            nonlocal sent
            for _ in range(count):
                server.post_recv()
                client.post_send(sent)
                sent += 1
            server.poll(count)

        def poll(count):
            nonlocal polled
            found = [wc.wr_id for wc in client.poll(count)]
            self.assertEqual(found, list(range(polled, polled + count)))
            polled += count

        # More than a lap of each ring, with completions that wait at each change.
        for entries in [31, 15, 63, 7, 15, 31, 7]:
            send(5)
            poll(3)
            client.cq.resize(entries)
            self.assertEqual(client.cq.cqe, entries)
            send(4)
            poll(sent - polled)
            for _ in range(entries // 2):
                send(3)
                poll(3)
        self.assertEqual(client.cq.poll(1)[0], 0)

    def test_resize_cq_with_completions(self):
        self.resize()

    def test_resize_cq_of_128_bytes(self):
        self.set_env_variable('MLX5_CQE_SIZE', '128')
        self.resize()

    def test_registered_pages_outlive_their_mapping(self):
        """A card keeps the pages of a region; UCX unmaps them before it deregisters the region."""
        client, server = self.connect()
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        size = 1 << 20
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE, flags,
                            -1, ctypes.c_long(0))
        region = MR(server.pd, size, e.IBV_ACCESS_LOCAL_WRITE, address=address)
        # libmlx5 itself writes messages of at most 64 bytes (scatter to CQE).
        bytes = 1000
        server.qp.post_recv(RecvWR(7, num_sge=1, sg=[SGE(address, bytes, region.lkey)]))
        self.assertEqual(libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size)), 0)
        client.post_send(8, sge=client.sge(bytes))
        [received], [sent] = server.poll(), client.poll()
        self.assertEqual([(received.wr_id, received.status), (sent.wr_id, sent.status)],
                         [(7, e.IBV_WC_SUCCESS), (8, e.IBV_WC_SUCCESS)])
        region.close()

    def test_solicited_events(self):
        client, server = self.connect()
        for wr_id in range(40):
            server.post_recv(wr_id)

        def send(flags=0):
            client.post_send(0, flags)
            client.poll()

        server.cq.req_notify(True)
        # An event is sent before the next completion is written.
        for _ in range(3):
            send()
            server.poll()
        self.assertEqual(server.events(), 0)
        send(e.IBV_SEND_SOLICITED)
        server.event()
        server.poll()
        send(e.IBV_SEND_SOLICITED)
        server.poll()
        self.assertEqual(server.events(), 0, 'it was armed for one')

        # What has completed before the arm, and was not polled, counts.
        send()
        send()
        server.cq.req_notify(True)
        send()
        server.poll(3)
        self.assertEqual(server.events(), 0)
        send(e.IBV_SEND_SOLICITED)
        server.event()
        send()
        server.cq.req_notify(True)
        server.event()
        server.poll(2)

        server.cq.req_notify(False)
        send()
        server.event()
        server.poll()

        # A request that fails is as good as a solicited one.
        client.cq.req_notify(True)
        client.post_send(sge=[SGE(client.mr.buf, 8, client.mr.lkey + 0x100)])
        client.event()
        self.assertNotEqual(client.poll()[0].status, e.IBV_WC_SUCCESS)

    def check_scatter(self, sizes):
        """A message is scattered if polling its completion puts it into a buffer that had it."""
        client, server = self.connect()
        for size, is_scattered in sizes.items():
            client.mr.write('c' * size, size)
            server.post_recv(size=100)
            server.cq.req_notify()
            client.post_send(sge=client.sge(size))
            server.event()
            self.assertEqual(server.mr.read(size, 0), b'c' * size)
            server.mr.write('-' * size, size)
            self.assertEqual(server.poll()[0].byte_len, size)
            found = server.mr.read(size, 0)
            self.assertEqual(found, (b'c' if is_scattered else b'-') * size)
            client.poll()

    def test_scatter_to_cqe(self):
        self.check_scatter({1: True, 32: True, 33: False})

    def test_scatter_to_cqe_of_128_bytes(self):
        self.set_env_variable('MLX5_CQE_SIZE', '128')
        self.check_scatter({1: True, 33: True, 64: True, 65: False})

    def test_no_scatter_to_cqe(self):
        self.set_env_variable('MLX5_SCATTER_TO_CQE', '0')
        self.check_scatter({1: False, 32: False})

    def test_rereg_mr_with_window(self):
        client, _ = self.connect(access=e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND)
        window = MW(client.pd, e.IBV_MW_TYPE_1)
        info = MWBindInfo(client.mr, client.mr.buf, 8, e.IBV_ACCESS_REMOTE_WRITE)
        client.qp.bind_mw(window, MWBind(info, e.IBV_SEND_SIGNALED))
        client.poll()
        with self.assertRaises(PyverbsRDMAError) as refused:
            client.mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=e.IBV_ACCESS_LOCAL_WRITE)
        self.assertEqual(refused.exception.error_code, errno.EBUSY)
        window.close()
        client.mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=e.IBV_ACCESS_LOCAL_WRITE)

    def test_query_qp_of_rq(self):
        client, _ = self.connect()
        attributes, _ = client.qp.query(e.IBV_QP_CAP)
        self.assertEqual(attributes.cap.max_recv_wr, 128)
