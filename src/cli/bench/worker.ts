import { type Crowd, followTogether } from "./crowd.ts";

/** Messages: all followers have seen the start, the bytes that each one received, or a failure. */
export type CrowdReply =
  | { readonly isFollowing: true }
  | { readonly receivedBytes: readonly number[] }
  | { readonly problem: string };

// A thread of `coppice bench` for followers, so that they do not delay the thread that measures.
declare const self: Worker;

self.onmessage = async ({ data }: MessageEvent<Crowd>) => {
  const reply = (message: CrowdReply) => self.postMessage(message);
  try {
    reply({ receivedBytes: await followTogether(data, () => reply({ isFollowing: true })) });
  } catch (error) {
    reply({ problem: (error as Error).message });
  }
};
