import { type Crowd, followTogether } from "./crowd.ts";
import { type Peer, servePeer } from "./peer.ts";

/** What this thread is asked for. */
export type ThreadRequest = Peer | Crowd;

/** Where a peer serves, what a crowd has received, or why there is neither. */
export type ThreadReply =
  | { readonly url: string }
  | { readonly isFollowing: true }
  | { readonly receivedBytes: readonly number[] }
  | { readonly problem: string };

// A thread of `coppice bench` that does what the measuring one must not be kept by.
declare const self: Worker;

self.onmessage = async ({ data }: MessageEvent<ThreadRequest>) => {
  const reply = (message: ThreadReply) => self.postMessage(message);
  try {
    if (data.kind === "crowd") reply({ receivedBytes: await followTogether(data, () => reply({ isFollowing: true })) });
    else reply({ url: await servePeer(data) });
  } catch (error) {
    reply({ problem: (error as Error).message });
  }
};
