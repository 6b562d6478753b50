/* A cable between two network interfaces that loses, repeats, delays and changes frames, and counts what it did.
 *
 * usage: relay HOST_SIDE NETWORK_SIDE [NAME=NUMBER ...]
 *
 *   drop, duplicate, reorder, corrupt   frames of a thousand
 *   longest       drops packets of more bytes, like a path with a small MTU; 0: none
 *   protocol      faults for this protocol of IPv4 only (17: UDP, 6: TCP), 0: for all of IPv4
 *   toward        faults in one direction only: 1 toward the host, 2 toward the network, 3 both (default)
 *   spare         last byte of an address whose packets pass unchanged: the node of the launcher
 *   seed          seed of the choices
 *
 * It prints its counts as JSON for each line of standard input, and when that ends, with which it ends too. It needs root, and
 * two interfaces that nobody else uses: `tools/relay.py` makes them. Frames come and go with the header of virtio
 * (PACKET_VNET_HDR), which says where the kernel has left a checksum to the interface. So such frames are passed on as they are.
 *
 * A changed byte lies behind the header of UDP or TCP. A changed datagram arrives with a checksum that the kernel accepts,
 * because weir has to notice it. A changed segment of TCP arrives with a wrong one, because nobody but the kernel can send it
 * again.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ETHERNET = 14, LARGEST = 1 << 17, QUEUE = 512, BATCH = 64, BUFFER_BYTES = 1 << 24, UDP = 17, TCP = 6, NOBODY = 256 };
enum { LONGEST_DELAY_US = 4000 };
enum direction { TOWARD_HOST, TOWARD_NETWORK };

struct frame {
    struct virtio_net_hdr about;
    unsigned char bytes[LARGEST];
};

/* A frame that waits. */
struct late {
    uint64_t due_us, passed_before; /* `passed_before`: frames of its direction that had passed when it arrived */
    enum direction direction;
    int is_copy;
    size_t bytes;
    struct frame *frame;
};

static struct { long drop, duplicate, reorder, corrupt, longest, protocol, toward, spare, seed; } options = {
    .toward = 3, .spare = NOBODY};
/* `frames`: those that faults are for. `reordered`: delayed and overtaken. `refused`: the other interface did not take them.
 * `overrun`: they came faster than this program read. `unsplit`: bundles of frames, which pass unchanged. */
static struct { unsigned long frames, dropped, duplicated, reordered, corrupted, too_long, refused, overrun, unsplit; } counts;
static int sockets[2];              /* by the direction of what is sent there */
static uint64_t passed[2];          /* frames that faults are for */
static struct late queue[QUEUE];
static int queued;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t roll(uint64_t below) { /* splitmix64 */
    static uint64_t state;
    uint64_t x = (state += 0x9e3779b97f4a7c15u) + (uint64_t)options.seed * 0xd1342543de82ef95u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % below;
}

static int happens(long per_mille) { return per_mille > 0 && (long)roll(1000) < per_mille; }

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000u + now.tv_nsec / 1000;
}

static int open_interface(const char *name) {
    int on = 1, bytes = BUFFER_BYTES, fd = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll place = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = if_nametoindex(name)};
    if (fd < 0 || !place.sll_ifindex) die(name);
    if (setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on)) die("PACKET_VNET_HDR");
    if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on)) die("PACKET_IGNORE_OUTGOING");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    if (bind(fd, (struct sockaddr *)&place, sizeof place)) die(name);
    return fd;
}

static void pass(const struct frame *frame, size_t bytes, enum direction direction) {
    while (send(sockets[direction], frame, sizeof frame->about + bytes, MSG_DONTWAIT) < 0)
        if (errno != EINTR) {
            *(errno == EMSGSIZE ? &counts.too_long : &counts.refused) += 1;
            return;
        }
}

/* Fills in the checksum that the kernel has left to the interface. */
static void complete_checksum(struct frame *frame, size_t bytes) {
    if (!(frame->about.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM)) return;
    size_t start = frame->about.csum_start, place = start + frame->about.csum_offset;
    if (place + 2 > bytes) return;
    uint32_t sum = 0;
    for (size_t at = start; at < bytes; at += 2) sum += frame->bytes[at] << 8 | (at + 1 < bytes ? frame->bytes[at + 1] : 0);
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    frame->bytes[place] = ~sum >> 8;
    frame->bytes[place + 1] = ~sum;
    frame->about.flags = 0;
}

/* The number of the first byte behind the header of UDP or TCP, or 0 if faults are not for this frame. */
static size_t payload_of(const unsigned char *frame, size_t bytes) {
    const unsigned char *ip = frame + ETHERNET;
    if (bytes < ETHERNET + 20 || frame[12] != 8 || frame[13] != 0) return 0;
    if (options.protocol && ip[9] != options.protocol) return 0;
    if (ip[15] == options.spare || ip[19] == options.spare) return 0;
    size_t at = ETHERNET + (ip[0] & 15) * 4;
    if (ip[9] == TCP && at + 20 <= bytes) return at + (frame[at + 12] >> 4) * 4;
    return at + 8;
}

static void corrupt(struct frame *frame, size_t bytes, size_t payload) {
    if (payload >= bytes) return;
    int protocol = frame->bytes[ETHERNET + 9];
    if (protocol == UDP && !(frame->about.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM))
        frame->bytes[payload - 2] = frame->bytes[payload - 1] = 0; /* no checksum */
    if (protocol != UDP) complete_checksum(frame, bytes);
    frame->bytes[payload + roll(bytes - payload)] ^= 1 + roll(255);
    counts.corrupted++;
}

static int wait_a_while(const struct frame *frame, size_t bytes, enum direction direction, int is_copy) {
    struct frame *copy = queued < QUEUE ? malloc(sizeof frame->about + bytes) : NULL;
    if (!copy) return 0;
    memcpy(copy, frame, sizeof frame->about + bytes);
    queue[queued++] = (struct late){now_us() + 200 + roll(LONGEST_DELAY_US), passed[direction], direction, is_copy, bytes, copy};
    return 1;
}

/* Sends what is due. Returns the time until the next frame is, in us, or -1. */
static int64_t send_due(uint64_t now) {
    int64_t next = -1;
    for (int i = 0; i < queued;) {
        struct late *late = &queue[i];
        if (late->due_us > now) {
            int64_t left = late->due_us - now;
            if (next < 0 || left < next) next = left;
            i++;
            continue;
        }
        if (!late->is_copy && passed[late->direction] > late->passed_before) counts.reordered++;
        pass(late->frame, late->bytes, late->direction);
        free(late->frame);
        queue[i] = queue[--queued];
    }
    return next;
}

static void relay(struct frame *frame, size_t bytes, enum direction direction) {
    frame->about.flags &= VIRTIO_NET_HDR_F_NEEDS_CSUM;
    size_t payload = payload_of(frame->bytes, bytes);
    if (!payload || !(options.toward & 1 << direction)) return pass(frame, bytes, direction);
    counts.frames++;
    if (frame->about.gso_type != VIRTIO_NET_HDR_GSO_NONE) counts.unsplit++;
    else if (options.longest && bytes - ETHERNET > (size_t)options.longest) {
        counts.too_long++;
        return;
    }
    if (happens(options.drop)) {
        counts.dropped++;
        return;
    }
    if (happens(options.corrupt) && frame->about.gso_type == VIRTIO_NET_HDR_GSO_NONE) corrupt(frame, bytes, payload);
    if (happens(options.reorder) && wait_a_while(frame, bytes, direction, 0)) return;
    pass(frame, bytes, direction);
    passed[direction]++;
    if (!happens(options.duplicate)) return;
    if (roll(2)) pass(frame, bytes, direction); /* at once, or after other frames */
    else if (!wait_a_while(frame, bytes, direction, 1)) return;
    counts.duplicated++;
}

static void read_option(const char *word) {
    static const struct { const char *name; long *value; } all[] = {
        {"drop", &options.drop}, {"duplicate", &options.duplicate}, {"reorder", &options.reorder}, {"corrupt", &options.corrupt},
        {"longest", &options.longest}, {"protocol", &options.protocol}, {"toward", &options.toward}, {"spare", &options.spare},
        {"seed", &options.seed}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        size_t length = strlen(all[i].name);
        char *end;
        if (strncmp(word, all[i].name, length) || word[length] != '=') continue;
        *all[i].value = strtol(word + length + 1, &end, 10);
        if (end > word + length + 1 && !*end) return;
    }
    fprintf(stderr, "relay: not an option: %s\n", word);
    exit(2);
}

static void count_overrun(int fd) {
    struct tpacket_stats stats;
    socklen_t bytes = sizeof stats;
    if (!getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &bytes)) counts.overrun += stats.tp_drops;
}

static void print_counts(void) {
    for (int side = 0; side < 2; side++) count_overrun(sockets[side]);
    printf("{\"frames\": %lu, \"dropped\": %lu, \"duplicated\": %lu, \"reordered\": %lu, \"corrupted\": %lu, \"too_long\": %lu, "
           "\"refused\": %lu, \"overrun\": %lu, \"unsplit\": %lu}\n", counts.frames, counts.dropped, counts.duplicated,
           counts.reordered, counts.corrupted, counts.too_long, counts.refused, counts.overrun, counts.unsplit);
    fflush(stdout);
}

int main(int argc, char **argv) {
    static struct frame frame;
    if (argc < 3) return fprintf(stderr, "usage: relay HOST_SIDE NETWORK_SIDE [NAME=NUMBER ...]\n"), 2;
    for (int i = 3; i < argc; i++) read_option(argv[i]);
    for (int side = 0; side < 2; side++) sockets[side] = open_interface(argv[1 + side]);
    puts("ready"), fflush(stdout);
    for (;;) {
        int64_t next_us = send_due(now_us());
        /* What comes in at the side of the network goes toward the host. A socket whose interface has gone is not asked. */
        struct pollfd ends[3] = {{sockets[1], POLLIN, 0}, {sockets[0], POLLIN, 0}, {0, POLLIN, 0}};
        struct timespec wait = {next_us / 1000000, next_us % 1000000 * 1000};
        if (ppoll(ends, 3, next_us < 0 ? NULL : &wait, NULL) < 0 && errno != EINTR) die("poll");
        for (int direction = 0; direction < 2; direction++)
            for (int i = 0; ends[direction].revents && i < BATCH; i++) {
                ssize_t got = recv(ends[direction].fd, &frame, sizeof frame, MSG_DONTWAIT);
                if (got < 0 && (errno == ENETDOWN || errno == EINTR)) continue;
                if (got < (ssize_t)sizeof frame.about) break;
                relay(&frame, got - sizeof frame.about, direction);
            }
        char line[1];
        if (!ends[2].revents) continue;
        if (read(0, line, sizeof line) <= 0) break;
        print_counts();
    }
    send_due(UINT64_MAX);
    print_counts();
    return 0;
}
