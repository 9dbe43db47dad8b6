import type { ComponentChildren } from "preact";
import { Link } from "../browser/router.ts";
import { classes } from "./classes.ts";
import { Icon, type IconName } from "./icon.tsx";

/** How much a button asks for attention: one `primary` per view at most; `quiet` has no border. */
export type Tone = "primary" | "plain" | "quiet" | "danger";

interface Native {
  readonly id?: string | undefined;
  readonly class?: string | undefined;
  readonly title?: string | undefined;
  readonly tabIndex?: number | undefined;
  readonly disabled?: boolean | undefined;
  /** of the dialog or form that it belongs to */
  readonly form?: string | undefined;
  readonly "aria-label"?: string | undefined;
  readonly "aria-pressed"?: boolean | undefined;
  readonly "aria-expanded"?: boolean | undefined;
  readonly "aria-controls"?: string | undefined;
  readonly "aria-describedby"?: string | undefined;
  readonly onClick?: ((event: MouseEvent) => void) | undefined;
  readonly onKeyDown?: ((event: KeyboardEvent) => void) | undefined;
}

export interface ButtonProps extends Native {
  readonly tone?: Tone;
  readonly icon?: IconName;
  readonly isSmall?: boolean;
  /** the action is running: further clicks do nothing */
  readonly isBusy?: boolean;
  readonly type?: "button" | "submit";
  readonly children?: ComponentChildren;
}

/** A button with a word on it. It sends no form unless its `type` is `submit`. */
export function Button({ tone = "plain", icon, isSmall, isBusy, type, children, onClick, ...rest }: ButtonProps) {
  const name = classes("button", `button-${tone}`, isSmall && "button-small", rest.class);
  // It stays focusable while it works: a disabled one would drop the focus.
  const click = isBusy === true ? (event: MouseEvent) => event.preventDefault() : onClick;
  return (
    <button {...rest} class={name} type={type ?? "button"} aria-busy={isBusy === true} onClick={click}>
      {icon === undefined ? null : <Icon name={icon} />}
      {children}
    </button>
  );
}

export interface ButtonLinkProps {
  readonly href: string;
  readonly tone?: Tone;
  readonly icon?: IconName;
  readonly isSmall?: boolean;
  /** file name of a download: the browser stores the response */
  readonly download?: string;
  readonly children?: ComponentChildren;
}

/** A link that looks like a button, for going somewhere and for downloads. */
export function ButtonLink({ href, tone = "plain", icon, isSmall, download, children }: ButtonLinkProps) {
  const name = classes("button", `button-${tone}`, isSmall && "button-small");
  const content = [icon === undefined ? null : <Icon name={icon} />, children];
  if (download === undefined) {
    return (
      <Link class={name} href={href}>
        {content}
      </Link>
    );
  }
  return (
    <a class={name} href={href} download={download}>
      {content}
    </a>
  );
}

export interface IconButtonProps extends Native {
  readonly icon: IconName;
  /** what it does, for screen readers and as a tip */
  readonly label: string;
  readonly tone?: Tone;
}

/** A button with only an icon. */
export function IconButton({ icon, label, tone = "quiet", ...rest }: IconButtonProps) {
  const name = classes("button", "button-icon", `button-${tone}`, rest.class);
  return (
    <button {...rest} class={name} type="button" aria-label={label} title={label}>
      <Icon name={icon} />
    </button>
  );
}
