import { openCloudHypervisorMachine } from "./cloud-hypervisor/existing.ts";
import { openQemuMachine } from "./qemu/existing.ts";
import type { Machine, MachineRecord } from "./vmm.ts";

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

export { openExistingMachine };
