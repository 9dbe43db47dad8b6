/*
 * The agent's wire protocol, guest side. Keep in sync with src/vm/protocol.ts, which explains every frame, and
 * src/domain/index-stream.ts, which explains the listing of a disk: a test compares the constants.
 */
#ifndef COPPICE_PROTOCOL_H
#define COPPICE_PROTOCOL_H

#define PROTOCOL_VERSION 2
#define FRAME_HEADER_BYTES 12
#define FRAME_PAYLOAD_BYTES_MAX 65536
#define SESSIONS_COUNT_MAX 16
#define EXEC_SPEC_BYTES_MAX 4194304
#define WINDOW_BYTES_INITIAL 262144
#define SYNC_ENTROPY_BYTES 32
#define LAYERS_COUNT_MAX 128
#define INDEX_RECORD_BYTES_MAX 262144
#define INDEX_MAGIC 0x58495043
#define INDEX_VERSION 1
#define INDEX_RECORD_FIXED_BYTES 72
#define INDEX_DISK_SCRATCH 0xffff

enum host_frame {
	HOST_SYNC = 1,
	HOST_MOUNT = 2,
	HOST_PUT_OPEN = 3,
	HOST_PUT_DATA = 4,
	HOST_EXEC_OPEN = 5,
	HOST_EXEC_SPEC = 6,
	HOST_STDIN = 7,
	HOST_SIGNAL = 8,
	HOST_WINDOW = 9,
	HOST_FREEZE = 10,
	HOST_INDEX = 11,
	HOST_MERGE = 12,
	HOST_RELEASE = 13,
};

enum agent_frame {
	AGENT_HELLO = 129,
	AGENT_SYNCED = 130,
	AGENT_DONE = 131,
	AGENT_ERROR = 132,
	AGENT_STARTED = 133,
	AGENT_OUTPUT = 134,
	AGENT_EXIT = 135,
	AGENT_WINDOW = 136,
	AGENT_LOG = 137,
};

enum stream { STREAM_STDIN = 0, STREAM_STDOUT = 1, STREAM_STDERR = 2 };
enum mount_flag { MOUNT_FLAG_SCRATCH = 1, MOUNT_FLAG_BARE = 2 };
enum exec_flag { EXEC_FLAG_STDIN = 1 };
enum index_flag { INDEX_FLAG_OPAQUE = 1 };
enum exit_flag { EXIT_FLAG_TIMED_OUT = 1, EXIT_FLAG_OOM_KILLED = 2 };

#endif
