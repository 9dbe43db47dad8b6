import { type Peer, servePeer } from "./peer.ts";

/** Where it serves, or why it does not. */
export type PeerReply = { readonly url: string } | { readonly problem: string };

// The thread of a peer that `coppice bench` compares the appliance with.
declare const self: Worker;

self.onmessage = async ({ data }: MessageEvent<Peer>) => {
  try {
    self.postMessage({ url: await servePeer(data) } satisfies PeerReply);
  } catch (error) {
    self.postMessage({ problem: (error as Error).message } satisfies PeerReply);
  }
};
