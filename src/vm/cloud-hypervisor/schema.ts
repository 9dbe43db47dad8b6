/*
 * The parts of Cloud Hypervisor's REST API that Coppice uses, spelled as in its OpenAPI document
 * (vmm/src/api/openapi/cloud-hypervisor.yaml). Fields with their default values are omitted. All fields exist in v52.
 * The VMM ignores unknown fields, so it would not report a misspelled name.
 */

export interface CpusConfig {
  readonly boot_vcpus: number;
  readonly max_vcpus: number;
  /** whether the guest may use hardware virtualisation; the VMM's default is true */
  readonly nested: boolean;
}

export interface MemoryConfig {
  /** in `bytes` */
  readonly size: number;
}

export interface PayloadConfig {
  readonly kernel: string;
  readonly initramfs: string;
  readonly cmdline: string;
}

export interface DiskConfig {
  readonly path: string;
  readonly readonly: boolean;
  readonly id: string;
  readonly serial: string;
  readonly pci_segment: number;
  readonly image_type: "Raw";
  /** whether a discard by the guest makes holes in the file */
  readonly sparse: boolean;
}

export interface SerialConfig {
  readonly mode: "Socket" | "Off";
  readonly socket?: string;
}

export interface ConsoleConfig {
  readonly mode: "Off";
}

export interface VsockConfig {
  readonly cid: number;
  readonly socket: string;
  readonly id: string;
}

export interface LandlockConfig {
  readonly path: string;
  /** `r`, `w` or both (vmm/src/landlock.rs) */
  readonly access: "r" | "rw";
}

export interface VmConfig {
  readonly cpus: CpusConfig;
  readonly memory: MemoryConfig;
  readonly payload: PayloadConfig;
  readonly rng: { readonly src: string };
  readonly serial: SerialConfig;
  readonly console: ConsoleConfig;
  readonly vsock: VsockConfig;
  readonly pvpanic: boolean;
  readonly platform: { readonly num_pci_segments: number };
  readonly landlock_enable: boolean;
  readonly landlock_rules?: readonly LandlockConfig[];
}

export interface RestoreConfig {
  readonly source_url: string;
  readonly memory_restore_mode: "Copy";
}

export type VmState = "Created" | "Running" | "Shutdown" | "Paused" | "BreakPoint";

export interface VmInfo {
  readonly state: VmState;
}

export interface PciDeviceInfo {
  readonly id: string;
  readonly bdf: string;
}

export interface VmmPingResponse {
  readonly version: string;
}
