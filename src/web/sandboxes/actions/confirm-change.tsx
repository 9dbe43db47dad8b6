import type { Sandbox } from "../../../client/types.ts";
import { Confirm, type ConfirmProps } from "../../parts/dialog.tsx";

export interface QuestionProps {
  readonly sandbox: Sandbox;
  readonly onClose: () => void;
  readonly onChange: () => void;
}

interface SteadyConfirmProps extends Omit<ConfirmProps, "onConfirm"> {
  readonly onConfirm: () => Promise<void>;
  readonly onChange: () => void;
}

/** A question after which the sandbox is read again, whatever the answer of the appliance was. */
export function ConfirmChange({ onConfirm, onChange, ...rest }: SteadyConfirmProps) {
  const confirm = async () => {
    try {
      await onConfirm();
    } catch (error) {
      onChange();
      throw error;
    }
    onChange();
  };
  return <Confirm {...rest} onConfirm={confirm} />;
}
