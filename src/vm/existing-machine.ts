import { openCloudHypervisorMachine } from "./cloud-hypervisor/existing.ts";
import { PROGRAM_NAME as CLOUD_HYPERVISOR } from "./cloud-hypervisor/machine.ts";
import * as jail from "./jail/existing-vmm.ts";
import { openQemuMachine } from "./qemu/existing.ts";
import { PROGRAM_NAME as QEMU } from "./qemu/machine.ts";
import type { Machine, MachineExit, MachineRecord } from "./vmm.ts";

/** The parts of the host that a machine needs which another process started. */
type ExistingMachineHost = Parameters<typeof openQemuMachine>[0];

/**
 * Opens a machine that another process started and left, whichever VMM runs it. The caller has checked the record
 * (`recordProblem`). A machine that cannot be opened is ended and removed.
 * @throws MachineEndedError when the guest or the VMM ended meanwhile; VmmError when the machine is not as recorded
 */
async function openExistingMachine(host: ExistingMachineHost, record: MachineRecord): Promise<Machine> {
  return record.vmm === "qemu" ? await openQemuMachine(host, record) : await openCloudHypervisorMachine(host, record);
}

/** How a machine ended while no process watched it; null when its launcher has not reported that. @param home its directory */
async function unwatchedExit({ vmm }: MachineRecord, home: string): Promise<MachineExit | null> {
  return await jail.unwatchedExit(vmm === "qemu" ? QEMU : CLOUD_HYPERVISOR, home);
}

export { openExistingMachine, unwatchedExit };
