{{/* The name of everything that the chart makes. */}}
{{- define "paced.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "paced.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "paced.labels" -}}
{{ include "paced.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "paced.secret" -}}
{{- default (include "paced.fullname" .) .Values.secret.existing -}}
{{- end -}}

{{- define "paced.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "paced.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "paced.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The names that requests may be addressed to, as JSON: all forms of the Service's, and those of admin.allowHosts. */}}
{{- define "paced.hosts" -}}
{{- $name := include "paced.fullname" . -}}
{{- $short := printf "%s.%s" $name .Release.Namespace -}}
{{- $service := printf "%s.svc" $short -}}
{{- toJson (concat (list $name $short $service (printf "%s.%s" $service .Values.clusterDomain)) .Values.admin.allowHosts) -}}
{{- end -}}
