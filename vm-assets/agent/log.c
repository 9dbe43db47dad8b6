#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "frame.h"
#include "platform.h"
#include "protocol.h"

static bool muted;

void log_mute(bool mute)
{
	muted = mute;
}

static void emit(const char *format, va_list arguments)
{
	char text[FRAME_TEXT_BYTES_MAX];
	vsnprintf(text, sizeof text, format, arguments);
	platform_log(text);
	if (!muted && frame_can_answer())
		frame_send(AGENT_LOG, 0, text, strlen(text));
}

void log_line(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	emit(format, arguments);
	va_end(arguments);
}

_Noreturn void log_fatal(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	emit(format, arguments);
	va_end(arguments);
	frame_flush();
	platform_end(3);
}
