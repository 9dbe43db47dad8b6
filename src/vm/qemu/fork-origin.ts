import { type Static, Type } from "@sinclair/typebox";
import { PROTOCOL_VERSION } from "../agent/protocol.ts";
import { hashOf, hostProcessor } from "../host-processor.ts";
import type { Acceleration, MachineShape } from "../vmm.ts";
import { buildQemuArgs } from "./args.ts";

/** The facts that must be equal where a fork point is saved and where it is loaded. */
export const forkOrigin = Type.Object({
  /** version of QEMU, with that of its package */
  qemu: Type.String({ maxLength: 200 }),
  acceleration: Type.Union([Type.Literal("kvm"), Type.Literal("tcg")]),
  /** the host's processor; null when the guest's is emulated */
  processor: Type.Union([Type.String({ maxLength: 200 }), Type.Null()]),
  /** hash of everything else that defines the machine */
  machine: Type.String({ maxLength: 100 }),
  agentProtocol: Type.Integer(),
});
export type ForkOrigin = Static<typeof forkOrigin>;

/** The origin of a fork point that is saved here, and of those that can be loaded here. @param qemu version of QEMU */
export function originOf(acceleration: Acceleration, shape: MachineShape, qemu: string): ForkOrigin {
  const args = buildQemuArgs({ acceleration, shape, descriptors: { qmp: 0, agent: 0 }, start: { kind: "fork" } });
  const processor = acceleration === "kvm" ? hostProcessor() : null;
  return { qemu, acceleration, processor, machine: hashOf(args), agentProtocol: PROTOCOL_VERSION };
}

/** Why a fork point cannot be loaded; null when it can. */
export function difference(saved: ForkOrigin, here: ForkOrigin): string | null {
  if (saved.qemu !== here.qemu) return `QEMU ${saved.qemu} saved its memory, and this host has ${here.qemu}`;
  if (saved.acceleration !== here.acceleration) {
    const name = (acceleration: Acceleration) => (acceleration === "kvm" ? "KVM" : "emulation");
    return `its memory was saved with ${name(saved.acceleration)}, and machines run with ${name(here.acceleration)} now`;
  }
  if (saved.processor !== here.processor) return "its memory was saved on a host with another processor";
  if (saved.agentProtocol !== here.agentProtocol) {
    return `its agent speaks version ${saved.agentProtocol} of the protocol, and this release speaks ${here.agentProtocol}`;
  }
  if (saved.machine !== here.machine) return "its memory was saved by a release with other virtual machines";
  return null;
}
